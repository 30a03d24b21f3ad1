// Bytes that prove themselves: a BLAKE2b hash behind them, so that what is torn or rotten is known
// as such.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "base/byte_stream.h"
#include "security/hash.h"

namespace isthmus::inter {

inline Bytes with_checksum(ByteWriter& out) {
  const auto digest = security::blake2b(out.view());
  out.raw(digest.bytes);
  return out.take();
}

inline bool checks(std::span<const std::byte> bytes) {
  if (bytes.size() < 32) return false;
  const auto digest = security::blake2b(bytes.first(bytes.size() - 32));
  return std::equal(digest.bytes.begin(), digest.bytes.end(), bytes.end() - 32);
}

}  // namespace isthmus::inter

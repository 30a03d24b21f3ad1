// Keys, digests and signatures as hexadecimal text: lower case when written, either case when read.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace isthmus::security {

std::string to_hex(std::span<const std::byte> bytes);

// True when `text` is exactly the digits of `out`, which is filled; otherwise `out` holds garbage.
bool from_hex(std::string_view text, std::span<std::byte> out);

// Of Digest, PublicKey, CurveKey, Signature: whatever holds nothing but an array `bytes`.
// Fails with invalid_argument; the sentence does not repeat the text, which may be a secret.
template <class Value>
Result<Value> parse_hex(std::string_view text) {
  Value value;
  if (!from_hex(text, value.bytes))
    return Error{ErrorCode::invalid_argument,
                 text.size() == 2 * value.bytes.size()
                     ? fmt::format("expected {} hexadecimal digits (0-9, a-f), but one of these "
                                   "characters is none",
                                   text.size())
                     : fmt::format("expected {} hexadecimal digits, got {} characters",
                                   2 * value.bytes.size(), text.size())};
  return value;
}

}  // namespace isthmus::security

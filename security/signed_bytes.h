// The bytes that a signature covers (security/signature.h), for signing and verifying alike.
#pragma once

#include <span>
#include <string_view>

#include "base/byte_stream.h"

namespace isthmus::security {

inline Bytes signed_bytes(std::string_view context, std::span<const std::byte> message) {
  return ByteWriter().string(context).raw(message).take();
}

}  // namespace isthmus::security

// The public keys that rosters hold, each a type of its own so that one is never taken for another.
// As text: security/hex.h.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <string>

#include "security/hex.h"

namespace isthmus::security {

// Ed25519: a site's identity, which its TLS connections show too, or the operator.
struct PublicKey {
  std::array<std::byte, 32> bytes{};

  auto operator<=>(const PublicKey&) const = default;
  std::string hex() const { return to_hex(bytes); }
};

// X25519: what CURVE sockets authenticate. ZeroMQ takes and gives these 32 bytes as they are.
struct CurveKey {
  std::array<std::byte, 32> bytes{};

  auto operator<=>(const CurveKey&) const = default;
  std::string hex() const { return to_hex(bytes); }
};

}  // namespace isthmus::security

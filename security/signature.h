// Ed25519 signatures over (context, message), and the two small interfaces that the protocol knows
// of keys: the simulator puts cheap ones in their place.
//
// What is signed is ByteWriter's string(context) followed by the message: the length in front keeps
// a message of one context from being read as one of another. A context is used for one kind of
// message only. All contexts are listed here and explained in security/HANDSHAKE.md.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "security/keys.h"

namespace isthmus::security {

namespace context {
inline constexpr std::string_view roster = "isthmus roster v1";
inline constexpr std::string_view curve_key = "isthmus curve key v1";
inline constexpr std::string_view open = "isthmus open v1";
inline constexpr std::string_view close = "isthmus close v1";
inline constexpr std::string_view chunks = "isthmus chunks v1";
inline constexpr std::string_view prepare = "isthmus prepare v1";
inline constexpr std::string_view promise = "isthmus promise v1";
inline constexpr std::string_view propose = "isthmus propose v1";
inline constexpr std::string_view accept = "isthmus accept v1";
inline constexpr std::string_view saved = "isthmus saved v1";
inline constexpr std::string_view wish = "isthmus wish v1";
}  // namespace context

inline constexpr std::size_t kSignatureBytes = 64;

struct Signature {
  std::array<std::byte, kSignatureBytes> bytes{};

  auto operator<=>(const Signature&) const = default;
  std::string hex() const { return to_hex(bytes); }
};

// Signs as one site. Any thread.
class Signer {
 public:
  virtual ~Signer() = default;
  virtual Signature sign(std::string_view context, std::span<const std::byte> message) const = 0;
};

// Knows the identities of the sites of one roster. Any thread.
class Verifier {
 public:
  virtual ~Verifier() = default;
  // `site` is its id in the roster; false for an unknown one. Everything may come from a peer.
  virtual bool verify(std::uint32_t site, std::string_view context,
                      std::span<const std::byte> message, const Signature& signature) const = 0;
};

// Under a key that is already trusted. Refuses keys of small order and signatures in other than
// their one canonical form.
bool verify_signature(const PublicKey& key, std::string_view context,
                      std::span<const std::byte> message, const Signature& signature);

}  // namespace isthmus::security

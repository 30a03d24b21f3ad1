// An Ed25519 key pair that signs: a site's identity or the operator. It lives in locked memory and
// is kept on disk as its 32-byte seed (security/identity.h, security/operator_key.h).
#pragma once

#include <cstddef>
#include <span>

#include "security/keys.h"
#include "security/secret.h"
#include "security/signature.h"

namespace isthmus::security {

class SigningKey final : public Signer {
 public:
  static constexpr std::size_t kSeedBytes = 32;

  static SigningKey generate();
  static SigningKey from_seed(std::span<const std::byte> seed);  // exactly kSeedBytes

  Signature sign(std::string_view context, std::span<const std::byte> message) const override;
  const PublicKey& public_key() const { return public_key_; }
  std::span<const std::byte> seed() const;  // secret

 private:
  SigningKey() = default;

  SecretBytes secret_;  // libsodium's form: seed, then public key
  PublicKey public_key_;
};

}  // namespace isthmus::security

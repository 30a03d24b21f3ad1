#include "security/signing_key.h"

#include <sodium.h>

#include "base/assert.h"
#include "security/signed_bytes.h"
#include "security/sodium_ready.h"

namespace isthmus::security {
static_assert(SigningKey::kSeedBytes == crypto_sign_SEEDBYTES);

SigningKey SigningKey::generate() {
  require_sodium();
  SecretBytes seed(kSeedBytes);
  randombytes_buf(seed.bytes().data(), seed.size());
  return from_seed(seed.bytes());
}

SigningKey SigningKey::from_seed(std::span<const std::byte> seed) {
  require_sodium();
  ISTHMUS_ASSERT(seed.size() == kSeedBytes);
  SigningKey key;
  key.secret_ = SecretBytes(crypto_sign_SECRETKEYBYTES);
  crypto_sign_seed_keypair(octets(key.public_key_.bytes.data()), octets(key.secret_.bytes().data()),
                           octets(seed.data()));
  return key;
}

Signature SigningKey::sign(std::string_view context, std::span<const std::byte> message) const {
  ISTHMUS_ASSERT(secret_.size() == crypto_sign_SECRETKEYBYTES);
  const Bytes bytes = signed_bytes(context, message);
  Signature signature;
  const int status =
      crypto_sign_detached(octets(signature.bytes.data()), nullptr, octets(bytes.data()),
                           bytes.size(), octets(secret_.bytes().data()));
  ISTHMUS_ASSERT(status == 0);
  return signature;
}

std::span<const std::byte> SigningKey::seed() const { return secret_.bytes().first(kSeedBytes); }

}  // namespace isthmus::security

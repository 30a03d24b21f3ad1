#include "security/signature.h"

#include <sodium.h>

#include "security/signed_bytes.h"
#include "security/sodium_ready.h"

namespace isthmus::security {

static_assert(sizeof(Signature::bytes) == crypto_sign_BYTES);
static_assert(sizeof(PublicKey::bytes) == crypto_sign_PUBLICKEYBYTES);

bool verify_signature(const PublicKey& key, std::string_view context,
                      std::span<const std::byte> message, const Signature& signature) {
  require_sodium();
  const Bytes bytes = signed_bytes(context, message);
  return crypto_sign_verify_detached(octets(signature.bytes.data()), octets(bytes.data()),
                                     bytes.size(), octets(key.bytes.data())) == 0;
}

}  // namespace isthmus::security

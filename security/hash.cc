#include "security/hash.h"

#include <sodium.h>

#include "base/assert.h"
#include "security/hex.h"
#include "security/sodium_ready.h"

namespace isthmus::security {
namespace {

using State = crypto_generichash_blake2b_state;
static_assert(sizeof(State) == 384 && alignof(State) == 64);

}  // namespace

std::string Digest::hex() const { return to_hex(bytes); }

Digest blake2b(std::span<const std::byte> bytes) {
  require_sodium();
  Digest digest;
  const int status = crypto_generichash_blake2b(octets(digest.bytes.data()), digest.bytes.size(),
                                                octets(bytes.data()), bytes.size(), nullptr, 0);
  ISTHMUS_ASSERT(status == 0);
  return digest;
}

Hasher::Hasher() {
  require_sodium();
  const int status = crypto_generichash_blake2b_init(reinterpret_cast<State*>(state_.data()),
                                                     nullptr, 0, sizeof(Digest::bytes));
  ISTHMUS_ASSERT(status == 0);
}

void Hasher::update(std::span<const std::byte> bytes) {
  ISTHMUS_ASSERT(!finished_);
  crypto_generichash_blake2b_update(reinterpret_cast<State*>(state_.data()), octets(bytes.data()),
                                    bytes.size());
}

Digest Hasher::finish() {
  ISTHMUS_ASSERT(!finished_);
  finished_ = true;
  Digest digest;
  crypto_generichash_blake2b_final(reinterpret_cast<State*>(state_.data()),
                                   octets(digest.bytes.data()), digest.bytes.size());
  return digest;
}

}  // namespace isthmus::security

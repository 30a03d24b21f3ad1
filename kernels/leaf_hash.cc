#include "kernels/leaf_hash.h"

#include <xxhash.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>  // the same values, from the widest vectors that the CPU has
#endif

#include <new>

namespace isthmus::kernels {

Hash128 leaf_hash(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

LeafHasher::LeafHasher() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  begin();
}

void LeafHasher::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

void LeafHasher::begin() { XXH3_128bits_reset(state_.get()); }

void LeafHasher::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
}

Hash128 LeafHasher::finish() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  return {hash.low64, hash.high64};
}

}  // namespace isthmus::kernels

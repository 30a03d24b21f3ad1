#include "kernels/leaf_hash.h"

#include <xxhash.h>

namespace isthmus::kernels {

Hash128 leaf_hash(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

}  // namespace isthmus::kernels

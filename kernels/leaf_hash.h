// Leaf hash: XXH3-128 of a leaf of outer state. Finds broken memory and diverged sites, quickly; no
// defence against somebody who chooses the bytes (security/hash.h is).
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>

namespace isthmus::kernels {

struct Hash128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  auto operator<=>(const Hash128&) const = default;
};

Hash128 leaf_hash(std::span<const std::byte> bytes);

}  // namespace isthmus::kernels

// Leaf hash: XXH3-128 of a leaf of outer state. Finds broken memory and diverged sites, quickly; no
// defence against somebody who chooses the bytes (security/hash.h is).
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

struct XXH3_state_s;  // of xxhash.h

namespace isthmus::kernels {

struct Hash128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  auto operator<=>(const Hash128&) const = default;
};

Hash128 leaf_hash(std::span<const std::byte> bytes);

// The same of bytes that come piece by piece: while they are still in a cache.
class LeafHasher {
 public:
  LeafHasher();
  void begin();  // anew
  void update(std::span<const std::byte> bytes);
  Hash128 finish() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace isthmus::kernels

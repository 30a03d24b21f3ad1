#include "runtime/permutation.h"

#include <algorithm>
#include <bit>

#include "base/assert.h"

namespace isthmus::runtime {
namespace {

constexpr std::uint64_t kFeistelRounds = 4;

}  // namespace

Permutation::Permutation(std::uint64_t size, Random key)
    : size_(size),
      key_(key),
      half_bits_(std::max(1U, (static_cast<unsigned>(std::bit_width(size - 1)) + 1) / 2)) {
  ISTHMUS_ASSERT(size > 0 && size <= std::uint64_t{1} << 60);
}

std::uint64_t Permutation::at(std::uint64_t index) const {
  ISTHMUS_ASSERT(index < size_);
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  // The domain is less than four times `size`, so the walk is short.
  do {
    std::uint64_t left = index >> half_bits_, right = index & mask;
    for (std::uint64_t round = 0; round < kFeistelRounds; ++round) {
      const std::uint64_t mixed = left ^ (key_.at(round << 32 | right) & mask);
      left = right;
      right = mixed;
    }
    index = left << half_bits_ | right;
  } while (index >= size_);
  return index;
}

}  // namespace isthmus::runtime

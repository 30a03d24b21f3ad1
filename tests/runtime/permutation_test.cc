#include "runtime/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace isthmus::runtime {
namespace {

TEST(Permutation, HitsEachIndexOnce) {
  for (const std::uint64_t size : {1, 2, 3, 4, 5, 15, 16, 17, 255, 256, 257, 4096, 10'007})
    for (const std::uint64_t key : {0, 1, 2}) {
      const Permutation permutation(size, Random(key));
      std::vector<bool> seen(size, false);
      for (std::uint64_t i = 0; i < size; ++i) {
        const auto j = permutation.at(i);
        ASSERT_LT(j, size);
        ASSERT_FALSE(seen[j]) << "size " << size << " key " << key;
        seen[j] = true;
      }
    }
}

TEST(Permutation, DependsOnTheKeyAndIsRepeatable) {
  const Permutation a(1000, Random(1)), again(1000, Random(1)), b(1000, Random(2));
  int equal = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(a.at(i), again.at(i));
    equal += a.at(i) == b.at(i);
  }
  EXPECT_LT(equal, 20);
}

TEST(Permutation, SpreadsNeighbours) {
  // A shuffle of n leaves neighbours (n + 1) / 3 apart on average.
  constexpr std::uint64_t kSize = 50'000;
  double distance = 0;
  const Permutation permutation(kSize, Random(3));
  for (std::uint64_t i = 1; i < kSize; ++i)
    distance += std::abs(static_cast<double>(permutation.at(i)) -
                         static_cast<double>(permutation.at(i - 1)));
  EXPECT_NEAR(distance / (kSize - 1), (kSize + 1) / 3.0, 0.02 * kSize);
}

TEST(Permutation, WorksOnLargeSizes) {
  const std::uint64_t size = (std::uint64_t{1} << 40) + 7;
  const Permutation permutation(size, Random(9));
  for (std::uint64_t i = 0; i < 1000; ++i) EXPECT_LT(permutation.at(size - 1 - i), size);
}

}  // namespace
}  // namespace isthmus::runtime

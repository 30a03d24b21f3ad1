#include "kernels/sum_of_squares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/thread_pool.h"
#include "tests/kernels/outer_bits.h"

namespace isthmus::kernels {
namespace {

TEST(SumOfSquares, InOneOrderOnAnyNumberOfThreads) {
  on_every_target([] {
    for (const std::size_t length :
         {std::size_t{0}, std::size_t{1}, std::size_t{17}, std::size_t{1000}, kSumOfSquaresBlock,
          2 * kSumOfSquaresBlock + 77}) {
      const std::vector<float> x = mixed_values("squares", length);
      double want = 0;
      for (std::size_t first = 0; first < length; first += kSumOfSquaresBlock) {
        std::array<double, 16> sums{};
        const std::size_t size = std::min(kSumOfSquaresBlock, length - first);
        for (std::size_t i = 0; i < size; ++i) {
          const double value = x[first + i];
          sums[i % 16] += value * value;
        }
        for (std::size_t width = 8; width > 0; width /= 2)
          for (std::size_t j = 0; j < width; ++j) sums[j] += sums[j + width];
        want += sums[0];
      }
      EXPECT_EQ(sum_of_squares(x), want) << length;
      for (const std::size_t threads : {1, 2}) {
        ThreadPool pool(std::vector<int>(threads, -1));
        std::vector<double> scratch(sum_of_squares_blocks(length));
        EXPECT_EQ(sum_of_squares(pool, x, scratch), want) << length << " on " << threads;
      }
    }
  });
}

}  // namespace
}  // namespace isthmus::kernels

#include "kernels/sum_of_squares.h"

#include <algorithm>
#include <array>

#include "base/assert.h"

namespace isthmus::kernels {
namespace {

constexpr std::size_t kSums = 16;

double block_sum(std::span<const float> x) {
  std::array<double, kSums> sums{};
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double value = x[i];
    sums[i % kSums] += value * value;
  }
  for (std::size_t width = kSums / 2; width > 0; width /= 2)
    for (std::size_t j = 0; j < width; ++j) sums[j] += sums[j + width];
  return sums[0];
}

std::span<const float> block_of(std::span<const float> x, std::size_t block) {
  const std::size_t first = block * kSumOfSquaresBlock;
  return x.subspan(first, std::min(kSumOfSquaresBlock, x.size() - first));
}

}  // namespace

double sum_of_squares(std::span<const float> x) {
  double total = 0;
  for (std::size_t block = 0; block < sum_of_squares_blocks(x.size()); ++block)
    total += block_sum(block_of(x, block));
  return total;
}

double sum_of_squares(ThreadPool& pool, std::span<const float> x, std::span<double> scratch) {
  const std::size_t blocks = sum_of_squares_blocks(x.size());
  ISTHMUS_ASSERT(scratch.size() >= blocks);
  pool.parallel_for(blocks, [&](std::size_t block, std::size_t) {
    scratch[block] = block_sum(block_of(x, block));
  });
  double total = 0;
  for (std::size_t block = 0; block < blocks; ++block) total += scratch[block];
  return total;
}

}  // namespace isthmus::kernels

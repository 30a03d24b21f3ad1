#include "kernels/sum_of_squares.h"

#include <algorithm>

#include "base/assert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sum_of_squares.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

// The square of an f32 is exact in f64, so a fused multiply-add would not differ.
double sum_block(const float* x, std::size_t count) {
  constexpr std::size_t kSums = 16;
  using DoubleTag = hn::CappedTag<double, kSums>;
  const DoubleTag d;
  const hn::Rebind<float, DoubleTag> d32;
  const std::size_t lanes = hn::Lanes(d);
  HWY_ALIGN double sums[kSums] = {};
  std::size_t i = 0;
  // Lane groups one by one: each keeps its sum in a register over the whole block.
  const std::size_t whole = count / kSums * kSums;
  for (std::size_t group = 0; group < kSums; group += 2 * lanes) {
    auto low = hn::Zero(d);
    auto high = hn::Zero(d);
    const bool two = group + lanes < kSums;
    for (i = 0; i < whole; i += kSums) {
      const auto a = hn::PromoteTo(d, hn::LoadU(d32, x + i + group));
      low = hn::Add(low, hn::Mul(a, a));
      if (two) {
        const auto b = hn::PromoteTo(d, hn::LoadU(d32, x + i + group + lanes));
        high = hn::Add(high, hn::Mul(b, b));
      }
    }
    hn::Store(low, d, sums + group);
    if (two) hn::Store(high, d, sums + group + lanes);
  }
  for (i = whole; i < count; ++i) {
    const double value = x[i];
    sums[i % kSums] += value * value;
  }
  for (std::size_t width = kSums / 2; width > 0; width /= 2)
    for (std::size_t j = 0; j < width; ++j) sums[j] += sums[j + width];
  return sums[0];
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(sum_block);

namespace {

double block_sum(std::span<const float> x, std::size_t block) {
  const std::size_t first = block * kSumOfSquaresBlock;
  return HWY_DYNAMIC_DISPATCH(sum_block)(x.data() + first,
                                         std::min(kSumOfSquaresBlock, x.size() - first));
}

}  // namespace

double sum_of_squares(std::span<const float> x) {
  double total = 0;
  for (std::size_t block = 0; block < sum_of_squares_blocks(x.size()); ++block)
    total += block_sum(x, block);
  return total;
}

double sum_of_squares(ThreadPool& pool, std::span<const float> x, std::span<double> scratch) {
  const std::size_t blocks = sum_of_squares_blocks(x.size());
  ISTHMUS_ASSERT(scratch.size() >= blocks);
  pool.parallel_for(blocks,
                    [&](std::size_t block, std::size_t) { scratch[block] = block_sum(x, block); });
  double total = 0;
  for (std::size_t block = 0; block < blocks; ++block) total += scratch[block];
  return total;
}

}  // namespace isthmus::kernels
#endif

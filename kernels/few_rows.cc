#include "kernels/few_rows.h"

#include "base/assert.h"
#include "kernels/elements.h"
#include "kernels/row_tasks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/few_rows.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

// kRows rows of x with kOutputs rows of the weight: each pair has a sum of its own, in one order
// whatever kRows and kOutputs are.
template <int kRows, int kOutputs, class In, class Out>
HWY_INLINE void multiply_block(const In* x, std::int64_t x_stride, const In* weight,
                               std::int64_t weight_stride, std::size_t in, Out* y,
                               std::int64_t y_stride) {
  const FloatTag d;
  const OneFloatTag one;
  const std::size_t lanes = hn::Lanes(d);
  hn::Vec<FloatTag> sums[kRows][kOutputs];
  ISTHMUS_UNROLL
  for (int r = 0; r < kRows; ++r) {
    ISTHMUS_UNROLL
    for (int o = 0; o < kOutputs; ++o) sums[r][o] = hn::Zero(d);
  }
  std::size_t i = 0;
  for (; i + lanes <= in; i += lanes) {
    hn::Vec<FloatTag> left[kRows];
    ISTHMUS_UNROLL
    for (int r = 0; r < kRows; ++r) left[r] = load_as_float(d, x + r * x_stride + i);
    ISTHMUS_UNROLL
    for (int o = 0; o < kOutputs; ++o) {
      const In* at = weight + o * weight_stride + i;
      prefetch_to_l2(at + kOutputs * weight_stride);  // of the block after this one
      const auto right = load_as_float(d, at);
      ISTHMUS_UNROLL
      for (int r = 0; r < kRows; ++r) sums[r][o] = hn::MulAdd(left[r], right, sums[r][o]);
    }
  }
  ISTHMUS_UNROLL
  for (int r = 0; r < kRows; ++r) {
    ISTHMUS_UNROLL
    for (int o = 0; o < kOutputs; ++o) {
      auto sum = hn::Set(one, hn::GetLane(hn::SumOfLanes(d, sums[r][o])));
      for (std::size_t k = i; k < in; ++k)
        sum = hn::MulAdd(load_as_float(one, x + r * x_stride + k),
                         load_as_float(one, weight + o * weight_stride + k), sum);
      store_float(sum, one, y + r * y_stride + o);
    }
  }
}

// All rows with kOutputs rows of the weight, which the first pass leaves in the nearest cache.
template <int kOutputs, class In, class Out>
HWY_INLINE void multiply_outputs(const In* x, std::int64_t x_stride, std::int64_t rows,
                                 const In* weight, std::int64_t weight_stride, std::size_t in,
                                 Out* y, std::int64_t y_stride) {
  std::int64_t r = 0;
  for (; r + 4 <= rows; r += 4)
    multiply_block<4, kOutputs>(x + r * x_stride, x_stride, weight, weight_stride, in,
                                y + r * y_stride, y_stride);
  for (; r + 2 <= rows; r += 2)
    multiply_block<2, kOutputs>(x + r * x_stride, x_stride, weight, weight_stride, in,
                                y + r * y_stride, y_stride);
  for (; r < rows; ++r)
    multiply_block<1, kOutputs>(x + r * x_stride, x_stride, weight, weight_stride, in,
                                y + r * y_stride, y_stride);
}

// Outputs first to end - 1. Eight sums at least are under way at once, which is what it takes to
// hide how long a product and a sum take; more would not stay in registers.
template <class In, class Out>
HWY_INLINE void multiply(const Rows& x, const Rows& weight, const Rows& y, std::int64_t first,
                         std::int64_t end) {
  const auto in = static_cast<std::size_t>(x.columns);
  const auto* from = static_cast<const In*>(x.data);
  const auto weights = [&](std::int64_t o) { return static_cast<const In*>(weight.at(o, 0)); };
  const auto to = [&](std::int64_t o) { return static_cast<Out*>(y.at(0, o)); };
  std::int64_t o = first;
  if (x.rows == 1)
    for (; o + 8 <= end; o += 8)
      multiply_outputs<8>(from, x.stride, x.rows, weights(o), weight.stride, in, to(o), y.stride);
  if (x.rows < 4)
    for (; o + 4 <= end; o += 4)
      multiply_outputs<4>(from, x.stride, x.rows, weights(o), weight.stride, in, to(o), y.stride);
  for (; o + 2 <= end; o += 2)
    multiply_outputs<2>(from, x.stride, x.rows, weights(o), weight.stride, in, to(o), y.stride);
  for (; o < end; ++o)
    multiply_outputs<1>(from, x.stride, x.rows, weights(o), weight.stride, in, to(o), y.stride);
}

void multiply_some(const Rows& x, const Rows& weight, const Rows& y, std::int64_t first,
                   std::int64_t end) {
  with_element(x.dtype, [&](auto in) {
    with_element(y.dtype, [&](auto out) {
      multiply<decltype(in), decltype(out)>(x, weight, y, first, end);
    });
  });
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(multiply_some);

void few_rows_product(ThreadPool& pool, const Rows& x, const Rows& weight, const Rows& y) {
  ISTHMUS_ASSERT(x.rows <= kFewRows && x.columns == weight.columns && x.dtype == weight.dtype &&
                 y.rows == x.rows && y.columns == weight.rows);
  for_row_tasks(pool, weight.rows, weight.columns,
                [&](std::int64_t first, std::int64_t end, auto, auto) {
                  HWY_DYNAMIC_DISPATCH(multiply_some)(x, weight, y, first, end);
                });
}

}  // namespace isthmus::kernels
#endif

#include "kernels/norm_rope.h"

#include <algorithm>
#include <cmath>

#include "base/assert.h"
#include "kernels/elements.h"
#include "kernels/row_tasks.h"

// The rows' positions. Included for each target: defined once.
#ifndef ISTHMUS_KERNELS_NORM_ROPE_TURNS
#define ISTHMUS_KERNELS_NORM_ROPE_TURNS
namespace isthmus::kernels {
namespace {

struct Turns {
  const float* table;
  std::int64_t sequence, head_dim;
  const float* of(std::int64_t row) const { return table + row % sequence * head_dim; }
};

}  // namespace
}  // namespace isthmus::kernels
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm_rope.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

// `turn`: the cosines of the position, then its sines.
template <class T>
void forward_head(const T* x, const float* weight, float epsilon, const float* turn,
                  std::size_t half, T* y, float* inverse_rms) {
  const float sum = sum_over(half, [=](auto tag, std::size_t i) {
    const auto low = load_as_float(tag, x + i);
    const auto high = load_as_float(tag, x + half + i);
    return hn::Add(hn::Mul(low, low), hn::Mul(high, high));
  });
  const float inverse = 1.0F / std::sqrt(sum / static_cast<float>(2 * half) + epsilon);
  *inverse_rms = inverse;
  for_lanes(half, [=](auto tag, std::size_t i) {
    const auto scale = hn::Set(tag, inverse);
    const auto low = hn::Mul(hn::Mul(load_as_float(tag, x + i), scale), hn::LoadU(tag, weight + i));
    const auto high = hn::Mul(hn::Mul(load_as_float(tag, x + half + i), scale),
                              hn::LoadU(tag, weight + half + i));
    const auto cosine = hn::LoadU(tag, turn + i);
    const auto sine = hn::LoadU(tag, turn + half + i);
    store_float(hn::Sub(hn::Mul(low, cosine), hn::Mul(high, sine)), tag, y + i);
    store_float(hn::Add(hn::Mul(high, cosine), hn::Mul(low, sine)), tag, y + half + i);
  });
}

// With g = dy rotated back:
// dx = inverse * (w g - x * inverse² * mean(w g x));  dweight += g x inverse
template <class T>
void backward_head(const T* dy, const T* x, const float* weight, float inverse, const float* turn,
                   std::size_t half, T* dx, float* dweight) {
  const auto back_low = [=](auto tag, std::size_t i) {
    return hn::Add(hn::Mul(load_as_float(tag, dy + i), hn::LoadU(tag, turn + i)),
                   hn::Mul(load_as_float(tag, dy + half + i), hn::LoadU(tag, turn + half + i)));
  };
  const auto back_high = [=](auto tag, std::size_t i) {
    return hn::Sub(hn::Mul(load_as_float(tag, dy + half + i), hn::LoadU(tag, turn + i)),
                   hn::Mul(load_as_float(tag, dy + i), hn::LoadU(tag, turn + half + i)));
  };
  const float dot = sum_over(half, [=](auto tag, std::size_t i) {
    const auto low =
        hn::Mul(hn::Mul(back_low(tag, i), hn::LoadU(tag, weight + i)), load_as_float(tag, x + i));
    const auto high = hn::Mul(hn::Mul(back_high(tag, i), hn::LoadU(tag, weight + half + i)),
                              load_as_float(tag, x + half + i));
    return hn::Add(low, high);
  });
  const float factor = dot / static_cast<float>(2 * half) * inverse * inverse;
  for_lanes(half, [=](auto tag, std::size_t i) {
    const auto scale = hn::Set(tag, inverse);
    const auto low = back_low(tag, i);  // both before either is written over
    const auto high = back_high(tag, i);
    const auto part = [&](auto g, std::size_t at) {
      const auto value = load_as_float(tag, x + at);
      if (dweight != nullptr) {
        const auto partial = hn::Mul(hn::Mul(g, value), scale);
        hn::StoreU(hn::Add(hn::LoadU(tag, dweight + at), partial), tag, dweight + at);
      }
      const auto weighted = hn::Mul(g, hn::LoadU(tag, weight + at));
      store_float(hn::Mul(scale, hn::NegMulAdd(value, hn::Set(tag, factor), weighted)), tag,
                  dx + at);
    };
    part(low, i);
    part(high, half + i);
  });
}

void forward_rows(const Rows& x, const float* weight, float epsilon, const Turns& turns,
                  const Rows& y, float* inverse_rms, std::int64_t first, std::int64_t end) {
  const auto d = turns.head_dim;
  const auto heads = x.columns / d;
  with_element(x.dtype, [&](auto element) {
    using T = decltype(element);
    for (std::int64_t row = first; row < end; ++row)
      for (std::int64_t head = 0; head < heads; ++head)
        forward_head(static_cast<const T*>(x.at(row, head * d)), weight, epsilon, turns.of(row),
                     static_cast<std::size_t>(d / 2), static_cast<T*>(y.at(row, head * d)),
                     inverse_rms + row * heads + head);
  });
}

void backward_rows(const Rows& dy, const Rows& x, const float* weight, const float* inverse_rms,
                   const Turns& turns, const Rows& dx, float* dweight, std::int64_t first,
                   std::int64_t end) {
  const auto d = turns.head_dim;
  const auto heads = x.columns / d;
  with_element(x.dtype, [&](auto element) {
    using T = decltype(element);
    for (std::int64_t row = first; row < end; ++row)
      for (std::int64_t head = 0; head < heads; ++head)
        backward_head(
            static_cast<const T*>(dy.at(row, head * d)), static_cast<const T*>(x.at(row, head * d)),
            weight, inverse_rms[row * heads + head], turns.of(row), static_cast<std::size_t>(d / 2),
            static_cast<T*>(dx.at(row, head * d)), dweight);
  });
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(forward_rows);
HWY_EXPORT(backward_rows);

namespace {

void check_shapes(const Rows& x, std::span<const float> weight, std::int64_t sequence,
                  std::span<const float> table, std::span<const float> inverse_rms) {
  const auto d = static_cast<std::int64_t>(weight.size());
  ISTHMUS_ASSERT(d > 0 && d % 2 == 0 && x.columns % d == 0 && sequence > 0);
  ISTHMUS_ASSERT(static_cast<std::int64_t>(table.size()) >= std::min(sequence, x.rows) * d);
  ISTHMUS_ASSERT(static_cast<std::int64_t>(inverse_rms.size()) == x.rows * (x.columns / d));
}

}  // namespace

void norm_rope_forward(ThreadPool& pool, const Rows& x, std::span<const float> weight,
                       float epsilon, std::int64_t sequence, std::span<const float> table,
                       const Rows& y, std::span<float> inverse_rms) {
  check_shapes(x, weight, sequence, table, inverse_rms);
  ISTHMUS_ASSERT(x.same_shape(y) && x.dtype == y.dtype);
  const Turns turns{table.data(), sequence, static_cast<std::int64_t>(weight.size())};
  for_row_tasks(pool, x.rows, x.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
    HWY_DYNAMIC_DISPATCH(forward_rows)
    (x, weight.data(), epsilon, turns, y, inverse_rms.data(), first, end);
  });
}

std::size_t norm_rope_scratch_floats(std::int64_t rows, std::int64_t columns,
                                     std::int64_t head_dim) {
  return sum_scratch_floats(rows, columns, static_cast<std::size_t>(head_dim));
}

void norm_rope_backward(ThreadPool& pool, const Rows& dy, const Rows& x,
                        std::span<const float> weight, std::span<const float> inverse_rms,
                        std::int64_t sequence, std::span<const float> table, const Rows& dx,
                        std::span<float> dweight, std::span<float> scratch) {
  check_shapes(x, weight, sequence, table, inverse_rms);
  ISTHMUS_ASSERT(x.same_shape(dy) && x.same_shape(dx) && x.dtype == dy.dtype &&
                 x.dtype == dx.dtype);
  ISTHMUS_ASSERT(dweight.empty() || dweight.size() == weight.size());
  const Turns turns{table.data(), sequence, static_cast<std::int64_t>(weight.size())};
  for_row_tasks_with_sum(pool, x.rows, x.columns, dweight, scratch,
                         [&](std::int64_t first, std::int64_t end, float* partial) {
                           HWY_DYNAMIC_DISPATCH(backward_rows)
                           (dy, x, weight.data(), inverse_rms.data(), turns, dx, partial, first,
                            end);
                         });
}

}  // namespace isthmus::kernels
#endif

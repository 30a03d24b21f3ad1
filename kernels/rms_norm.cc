#include "kernels/rms_norm.h"

#include <algorithm>
#include <cmath>

#include "base/assert.h"
#include "kernels/elements.h"
#include "kernels/row_tasks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rms_norm.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

template <class X, class Y>
void scale_row(const X* x, const float* weight, float inverse, std::size_t d, Y* y) {
  for_lanes(d, [=](auto tag, std::size_t i) {
    const auto normal = hn::Mul(load_as_float(tag, x + i), hn::Set(tag, inverse));
    store_float(hn::Mul(normal, hn::LoadU(tag, weight + i)), tag, y + i);
  });
}

template <class X, class Y>
void forward_row(const X* x, const float* weight, float epsilon, std::size_t d, Y* y,
                 float* inverse_rms) {
  const float sum = sum_over(d, [=](auto tag, std::size_t i) {
    const auto value = load_as_float(tag, x + i);
    return hn::Mul(value, value);
  });
  const float inverse = 1.0F / std::sqrt(sum / static_cast<float>(d) + epsilon);
  *inverse_rms = inverse;
  scale_row(x, weight, inverse, d, y);
}

// dx = inverse * (w dy - x * inverse² * mean(w dy x));  dweight += dy x inverse
template <class G, class X, class D>
void backward_row(const G* dy, const X* x, const float* weight, float inverse, std::size_t d, D* dx,
                  bool accumulate, float* dweight) {
  const float dot = sum_over(d, [=](auto tag, std::size_t i) {
    const auto g = hn::Mul(load_as_float(tag, dy + i), hn::LoadU(tag, weight + i));
    return hn::Mul(g, load_as_float(tag, x + i));
  });
  const float factor = dot / static_cast<float>(d) * inverse * inverse;
  for_lanes(d, [=](auto tag, std::size_t i) {
    const auto scale = hn::Set(tag, inverse);
    const auto g = load_as_float(tag, dy + i);
    const auto value = load_as_float(tag, x + i);
    const auto weighted = hn::Mul(g, hn::LoadU(tag, weight + i));
    auto gradient = hn::Mul(scale, hn::NegMulAdd(value, hn::Set(tag, factor), weighted));
    if (dweight != nullptr) {
      const auto partial = hn::Mul(hn::Mul(g, value), scale);
      hn::StoreU(hn::Add(hn::LoadU(tag, dweight + i), partial), tag, dweight + i);
    }
    if (accumulate) gradient = hn::Add(gradient, load_as_float(tag, dx + i));
    store_float(gradient, tag, dx + i);
  });
}

void forward_rows(const Rows& x, const float* weight, float epsilon, const Rows& y,
                  float* inverse_rms, std::int64_t first, std::int64_t end) {
  with_element(x.dtype, [&](auto in) {
    with_element(y.dtype, [&](auto out) {
      for (std::int64_t row = first; row < end; ++row)
        forward_row(static_cast<const decltype(in)*>(x.at(row, 0)), weight, epsilon,
                    static_cast<std::size_t>(x.columns), static_cast<decltype(out)*>(y.at(row, 0)),
                    inverse_rms + row);
    });
  });
}

void backward_rows(const Rows& dy, const Rows& x, const float* weight, const float* inverse_rms,
                   const Rows& dx, bool accumulate, float* dweight, const Rows* y,
                   std::int64_t first, std::int64_t end) {
  with_element(dy.dtype, [&](auto g) {
    with_element(x.dtype, [&](auto in) {
      with_element(dx.dtype, [&](auto out) {
        const auto d = static_cast<std::size_t>(x.columns);
        for (std::int64_t row = first; row < end; ++row) {
          const auto* values = static_cast<const decltype(in)*>(x.at(row, 0));
          // While the row is in the cache, and before dx may lie over it.
          if (y != nullptr && y->dtype == DType::f32)
            scale_row(values, weight, inverse_rms[row], d, static_cast<float*>(y->at(row, 0)));
          else if (y != nullptr)
            scale_row(values, weight, inverse_rms[row], d, static_cast<bf16_t*>(y->at(row, 0)));
          backward_row(static_cast<const decltype(g)*>(dy.at(row, 0)), values, weight,
                       inverse_rms[row], d, static_cast<decltype(out)*>(dx.at(row, 0)), accumulate,
                       dweight);
        }
      });
    });
  });
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(forward_rows);
HWY_EXPORT(backward_rows);

void rms_norm_forward(ThreadPool& pool, const Rows& x, std::span<const float> weight, float epsilon,
                      const Rows& y, std::span<float> inverse_rms) {
  ISTHMUS_ASSERT(x.same_shape(y) && static_cast<std::int64_t>(weight.size()) == x.columns &&
                 static_cast<std::int64_t>(inverse_rms.size()) == x.rows);
  for_row_tasks(pool, x.rows, x.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
    HWY_DYNAMIC_DISPATCH(forward_rows)
    (x, weight.data(), epsilon, y, inverse_rms.data(), first, end);
  });
}

std::size_t rms_norm_scratch_floats(std::int64_t rows, std::int64_t columns) {
  return sum_scratch_floats(rows, columns, static_cast<std::size_t>(columns));
}

void rms_norm_backward(ThreadPool& pool, const Rows& dy, const Rows& x,
                       std::span<const float> weight, std::span<const float> inverse_rms,
                       const Rows& dx, bool accumulate, std::span<float> dweight,
                       std::span<float> scratch, const Rows* y) {
  const auto d = static_cast<std::size_t>(x.columns);
  ISTHMUS_ASSERT(x.same_shape(dy) && x.same_shape(dx) && weight.size() == d &&
                 static_cast<std::int64_t>(inverse_rms.size()) == x.rows);
  ISTHMUS_ASSERT(dweight.empty() || dweight.size() == d);
  ISTHMUS_ASSERT(y == nullptr || y->same_shape(x));
  for_row_tasks_with_sum(pool, x.rows, x.columns, dweight, scratch,
                         [&](std::int64_t first, std::int64_t end, float* partial) {
                           HWY_DYNAMIC_DISPATCH(backward_rows)
                           (dy, x, weight.data(), inverse_rms.data(), dx, accumulate, partial, y,
                            first, end);
                         });
}

}  // namespace isthmus::kernels
#endif

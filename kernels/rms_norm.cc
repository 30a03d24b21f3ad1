#include "kernels/rms_norm.h"

#include <algorithm>
#include <cmath>

#include "kernels/elements.h"
#include "kernels/row_tasks.h"

namespace isthmus::kernels {
namespace {

template <class X, class Y>
void forward_row(const X* x, const float* weight, float epsilon, std::int64_t d, Y* y,
                 float* inverse_rms) {
  float sum = 0;
  for (std::int64_t i = 0; i < d; ++i) sum += load(x + i) * load(x + i);
  const float inverse = 1.0F / std::sqrt(sum / static_cast<float>(d) + epsilon);
  *inverse_rms = inverse;
  for (std::int64_t i = 0; i < d; ++i) store(load(x + i) * inverse * weight[i], y + i);
}

// dx = inverse * (w dy - x * inverse² * mean(w dy x))
template <class G, class X, class D>
void backward_row(const G* dy, const X* x, const float* weight, float inverse, std::int64_t d,
                  D* dx, bool accumulate, float* dweight) {
  float dot = 0;
  for (std::int64_t i = 0; i < d; ++i) dot += load(dy + i) * weight[i] * load(x + i);
  const float factor = dot / static_cast<float>(d) * inverse * inverse;
  for (std::int64_t i = 0; i < d; ++i) {
    const float g = load(dy + i);
    const float value = load(x + i);
    const float gradient = inverse * (weight[i] * g - value * factor);
    if (dweight != nullptr) dweight[i] += g * value * inverse;
    store(accumulate ? load(dx + i) + gradient : gradient, dx + i);
  }
}

}  // namespace

void rms_norm_forward(ThreadPool& pool, const Rows& x, std::span<const float> weight, float epsilon,
                      const Rows& y, std::span<float> inverse_rms) {
  ISTHMUS_ASSERT(x.same_shape(y) && static_cast<std::int64_t>(weight.size()) == x.columns &&
                 static_cast<std::int64_t>(inverse_rms.size()) == x.rows);
  for_row_tasks(pool, x.rows, x.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
    with_element(x.dtype, [&](auto in) {
      with_element(y.dtype, [&](auto out) {
        for (std::int64_t row = first; row < end; ++row)
          forward_row(static_cast<const decltype(in)*>(x.at(row, 0)), weight.data(), epsilon,
                      x.columns, static_cast<decltype(out)*>(y.at(row, 0)), &inverse_rms[row]);
      });
    });
  });
}

std::size_t rms_norm_scratch_floats(std::int64_t rows, std::int64_t columns) {
  return static_cast<std::size_t>(row_tasks(rows, columns) * columns);
}

void rms_norm_backward(ThreadPool& pool, const Rows& dy, const Rows& x,
                       std::span<const float> weight, std::span<const float> inverse_rms,
                       const Rows& dx, bool accumulate, std::span<float> dweight,
                       std::span<float> scratch) {
  const std::int64_t d = x.columns;
  ISTHMUS_ASSERT(x.same_shape(dy) && x.same_shape(dx) &&
                 static_cast<std::int64_t>(weight.size()) == d &&
                 static_cast<std::int64_t>(inverse_rms.size()) == x.rows);
  ISTHMUS_ASSERT(dweight.empty() || (static_cast<std::int64_t>(dweight.size()) == d &&
                                     scratch.size() >= rms_norm_scratch_floats(x.rows, d)));
  for_row_tasks(
      pool, x.rows, d, [&](std::int64_t first, std::int64_t end, std::size_t task, std::size_t) {
        float* partial = nullptr;
        if (!dweight.empty()) {
          partial = scratch.data() + task * static_cast<std::size_t>(d);
          std::fill_n(partial, d, 0.0F);
        }
        with_element(dy.dtype, [&](auto g) {
          with_element(x.dtype, [&](auto in) {
            with_element(dx.dtype, [&](auto out) {
              for (std::int64_t row = first; row < end; ++row)
                backward_row(static_cast<const decltype(g)*>(dy.at(row, 0)),
                             static_cast<const decltype(in)*>(x.at(row, 0)), weight.data(),
                             inverse_rms[row], d, static_cast<decltype(out)*>(dx.at(row, 0)),
                             accumulate, partial);
            });
          });
        });
      });
  if (dweight.empty()) return;
  const std::int64_t tasks = row_tasks(x.rows, d);
  for (std::int64_t task = 0; task < tasks; ++task)
    for (std::int64_t i = 0; i < d; ++i) dweight[i] += scratch[task * d + i];
}

}  // namespace isthmus::kernels

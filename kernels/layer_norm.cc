#include "kernels/layer_norm.h"

#include <cmath>

#include "base/assert.h"
#include "kernels/elements.h"
#include "kernels/row_tasks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/layer_norm.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

template <class X, class Y>
void forward_row(const X* x, const float* weight, const float* bias, float epsilon, std::size_t d,
                 Y* y, float* mean, float* inverse_deviation) {
  const auto count = static_cast<float>(d);
  const float middle =
      sum_over(d, [=](auto tag, std::size_t i) { return load_as_float(tag, x + i); }) / count;
  const float squares = sum_over(d, [=](auto tag, std::size_t i) {
    const auto deviation = hn::Sub(load_as_float(tag, x + i), hn::Set(tag, middle));
    return hn::Mul(deviation, deviation);
  });
  const float inverse = 1.0F / std::sqrt(squares / count + epsilon);
  *mean = middle;
  *inverse_deviation = inverse;
  for_lanes(d, [=](auto tag, std::size_t i) {
    const auto deviation = hn::Sub(load_as_float(tag, x + i), hn::Set(tag, middle));
    const auto normal = hn::Mul(deviation, hn::Set(tag, inverse));
    store_float(hn::MulAdd(normal, hn::LoadU(tag, weight + i), hn::LoadU(tag, bias + i)), tag,
                y + i);
  });
}

// With n = (x - mean) inverse and g = w dy:
//   dx = inverse (g - mean(g) - n mean(g n))    dweight += dy n    dbias += dy
template <class G, class X, class D>
void backward_row(const G* dy, const X* x, const float* weight, float mean, float inverse,
                  std::size_t d, D* dx, bool accumulate, float* dweight, float* dbias) {
  const auto weighted = [=](auto tag, std::size_t i) {
    return hn::Mul(load_as_float(tag, dy + i), hn::LoadU(tag, weight + i));
  };
  const auto normal = [=](auto tag, std::size_t i) {
    const auto deviation = hn::Sub(load_as_float(tag, x + i), hn::Set(tag, mean));
    return hn::Mul(deviation, hn::Set(tag, inverse));
  };
  const auto count = static_cast<float>(d);
  const float along_mean = sum_over(d, weighted) / count;
  const float along_normal =
      sum_over(d,
               [=](auto tag, std::size_t i) { return hn::Mul(weighted(tag, i), normal(tag, i)); }) /
      count;
  for_lanes(d, [=](auto tag, std::size_t i) {
    const auto n = normal(tag, i);
    const auto centred = hn::Sub(weighted(tag, i), hn::Set(tag, along_mean));
    const auto across = hn::NegMulAdd(n, hn::Set(tag, along_normal), centred);
    auto gradient = hn::Mul(across, hn::Set(tag, inverse));
    if (dweight != nullptr) {
      const auto g = load_as_float(tag, dy + i);
      hn::StoreU(hn::MulAdd(g, n, hn::LoadU(tag, dweight + i)), tag, dweight + i);
      hn::StoreU(hn::Add(g, hn::LoadU(tag, dbias + i)), tag, dbias + i);
    }
    if (accumulate) gradient = hn::Add(gradient, load_as_float(tag, dx + i));
    store_float(gradient, tag, dx + i);
  });
}

void forward_rows(const Rows& x, const float* weight, const float* bias, float epsilon,
                  const Rows& y, float* mean, float* inverse_deviation, std::int64_t first,
                  std::int64_t end) {
  with_element(x.dtype, [&](auto in) {
    with_element(y.dtype, [&](auto out) {
      for (std::int64_t row = first; row < end; ++row)
        forward_row(static_cast<const decltype(in)*>(x.at(row, 0)), weight, bias, epsilon,
                    static_cast<std::size_t>(x.columns), static_cast<decltype(out)*>(y.at(row, 0)),
                    mean + row, inverse_deviation + row);
    });
  });
}

void backward_rows(const Rows& dy, const Rows& x, const float* weight, const float* mean,
                   const float* inverse_deviation, const Rows& dx, bool accumulate, float* dweight,
                   float* dbias, std::int64_t first, std::int64_t end) {
  with_element(dy.dtype, [&](auto g) {
    with_element(x.dtype, [&](auto in) {
      with_element(dx.dtype, [&](auto out) {
        for (std::int64_t row = first; row < end; ++row)
          backward_row(static_cast<const decltype(g)*>(dy.at(row, 0)),
                       static_cast<const decltype(in)*>(x.at(row, 0)), weight, mean[row],
                       inverse_deviation[row], static_cast<std::size_t>(x.columns),
                       static_cast<decltype(out)*>(dx.at(row, 0)), accumulate, dweight, dbias);
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

void layer_norm_forward(ThreadPool& pool, const Rows& x, std::span<const float> weight,
                        std::span<const float> bias, float epsilon, const Rows& y,
                        std::span<float> mean, std::span<float> inverse_deviation) {
  const auto d = static_cast<std::size_t>(x.columns);
  const auto rows = static_cast<std::size_t>(x.rows);
  ISTHMUS_ASSERT(x.same_shape(y) && weight.size() == d && bias.size() == d && mean.size() == rows &&
                 inverse_deviation.size() == rows);
  for_row_tasks(pool, x.rows, x.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
    HWY_DYNAMIC_DISPATCH(forward_rows)
    (x, weight.data(), bias.data(), epsilon, y, mean.data(), inverse_deviation.data(), first, end);
  });
}

std::size_t layer_norm_scratch_floats(std::int64_t rows, std::int64_t columns) {
  return sum_scratch_floats(rows, columns, 2 * static_cast<std::size_t>(columns));
}

void layer_norm_backward(ThreadPool& pool, const Rows& dy, const Rows& x,
                         std::span<const float> weight, std::span<const float> mean,
                         std::span<const float> inverse_deviation, const Rows& dx, bool accumulate,
                         std::span<float> dweight, std::span<float> dbias,
                         std::span<float> scratch) {
  const auto d = static_cast<std::size_t>(x.columns);
  const auto rows = static_cast<std::size_t>(x.rows);
  ISTHMUS_ASSERT(x.same_shape(dy) && x.same_shape(dx) && weight.size() == d &&
                 mean.size() == rows && inverse_deviation.size() == rows);
  ISTHMUS_ASSERT(dweight.size() == dbias.size() && (dweight.empty() || dweight.size() == d));
  const std::size_t values = 2 * dweight.size();  // of a task: its dweight, then its dbias
  for_row_tasks_with_partials(pool, x.rows, x.columns, values, scratch,
                              [&](std::int64_t first, std::int64_t end, float* partial) {
                                HWY_DYNAMIC_DISPATCH(backward_rows)
                                (dy, x, weight.data(), mean.data(), inverse_deviation.data(), dx,
                                 accumulate, partial, partial == nullptr ? nullptr : partial + d,
                                 first, end);
                              });
  const std::int64_t tasks = row_tasks(x.rows, x.columns);
  add_partials(tasks, values, 0, scratch, dweight);
  add_partials(tasks, values, d, scratch, dbias);
}

}  // namespace isthmus::kernels
#endif

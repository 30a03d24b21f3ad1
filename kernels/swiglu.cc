#include "kernels/swiglu.h"

#include "base/assert.h"
#include "kernels/elements.h"
#include "kernels/row_tasks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/swiglu.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

// 1 / (1 + exp(-x)); exp(100) is infinite already.
template <class D>
HWY_INLINE hn::Vec<D> sigmoid(D tag, hn::Vec<D> x) {
  const auto one = hn::Set(tag, 1.0F);
  const auto power = exponential(tag, hn::Min(hn::Set(tag, 100.0F), hn::Neg(x)));
  return hn::Div(one, hn::Add(one, power));
}

template <class In, class Out>
void forward_row(const In* gate, const In* up, std::size_t width, Out* out) {
  for_lanes(width, [=](auto tag, std::size_t i) {
    const auto x = load_as_float(tag, gate + i);
    const auto silu = hn::Mul(x, sigmoid(tag, x));
    store_float(hn::Mul(silu, load_as_float(tag, up + i)), tag, out + i);
  });
}

template <class In, class Out>
void weighted_forward_row(const In* gate, const In* up, float weight, std::size_t width, Out* out) {
  for_lanes(width, [=](auto tag, std::size_t i) {
    const auto x = load_as_float(tag, gate + i);
    const auto product = hn::Mul(hn::Mul(x, sigmoid(tag, x)), load_as_float(tag, up + i));
    store_float(hn::Mul(hn::Set(tag, weight), product), tag, out + i);
  });
}

// d silu(x) / dx = s + x s (1 - s) = s (1 + x - silu)
template <class G, class In, class D>
void backward_row(const G* dout, const In* gate, const In* up, std::size_t width, D* dgate, D* dup,
                  In* out) {
  for_lanes(width, [=](auto tag, std::size_t i) {
    const auto x = load_as_float(tag, gate + i);
    const auto y = load_as_float(tag, up + i);
    const auto gradient = load_as_float(tag, dout + i);
    const auto s = sigmoid(tag, x);
    const auto silu = hn::Mul(x, s);
    const auto slope = hn::Mul(s, hn::Add(hn::Set(tag, 1.0F), hn::Sub(x, silu)));
    if (out != nullptr) store_float(hn::Mul(silu, y), tag, out + i);
    store_float(hn::Mul(hn::Mul(gradient, y), slope), tag, dgate + i);
    store_float(hn::Mul(gradient, silu), tag, dup + i);
  });
}

// Returns the gradient of the weight.
template <class G, class In, class D>
float weighted_backward_row(const G* dout, const In* gate, const In* up, float weight,
                            std::size_t width, D* dgate, D* dup, In* out) {
  return sum_over(width, [=](auto tag, std::size_t i) {
    const auto w = hn::Set(tag, weight);
    const auto x = load_as_float(tag, gate + i);
    const auto y = load_as_float(tag, up + i);
    const auto gradient = load_as_float(tag, dout + i);
    const auto s = sigmoid(tag, x);
    const auto silu = hn::Mul(x, s);
    const auto slope = hn::Mul(s, hn::Add(hn::Set(tag, 1.0F), hn::Sub(x, silu)));
    const auto product = hn::Mul(silu, y);
    const auto weighted = hn::Mul(gradient, w);
    if (out != nullptr) store_float(hn::Mul(w, product), tag, out + i);
    store_float(hn::Mul(hn::Mul(weighted, y), slope), tag, dgate + i);
    store_float(hn::Mul(weighted, silu), tag, dup + i);
    return hn::Mul(gradient, product);
  });
}

void weighted_forward_rows(const Rows& gate, const Rows& up, const float* weights, const Rows& out,
                           std::int64_t first, std::int64_t end) {
  with_element(gate.dtype, [&](auto in) {
    with_element(out.dtype, [&](auto result) {
      for (std::int64_t row = first; row < end; ++row)
        weighted_forward_row(static_cast<const decltype(in)*>(gate.at(row, 0)),
                             static_cast<const decltype(in)*>(up.at(row, 0)), weights[row],
                             static_cast<std::size_t>(gate.columns),
                             static_cast<decltype(result)*>(out.at(row, 0)));
    });
  });
}

void weighted_backward_rows(const Rows& dout, const Rows& gate, const Rows& up,
                            const float* weights, const Rows& dgate, const Rows& dup,
                            float* dweights, const Rows* out, std::int64_t first,
                            std::int64_t end) {
  with_element(dout.dtype, [&](auto g) {
    with_element(gate.dtype, [&](auto in) {
      with_element(dgate.dtype, [&](auto result) {
        using In = decltype(in);
        for (std::int64_t row = first; row < end; ++row)
          dweights[row] = weighted_backward_row(
              static_cast<const decltype(g)*>(dout.at(row, 0)),
              static_cast<const In*>(gate.at(row, 0)), static_cast<const In*>(up.at(row, 0)),
              weights[row], static_cast<std::size_t>(gate.columns),
              static_cast<decltype(result)*>(dgate.at(row, 0)),
              static_cast<decltype(result)*>(dup.at(row, 0)),
              out == nullptr ? nullptr : static_cast<In*>(out->at(row, 0)));
      });
    });
  });
}

void forward_rows(const Rows& gate, const Rows& up, const Rows& out, std::int64_t first,
                  std::int64_t end) {
  with_element(gate.dtype, [&](auto in) {
    with_element(out.dtype, [&](auto result) {
      for (std::int64_t row = first; row < end; ++row)
        forward_row(static_cast<const decltype(in)*>(gate.at(row, 0)),
                    static_cast<const decltype(in)*>(up.at(row, 0)),
                    static_cast<std::size_t>(gate.columns),
                    static_cast<decltype(result)*>(out.at(row, 0)));
    });
  });
}

void backward_rows(const Rows& dout, const Rows& gate, const Rows& up, const Rows& dgate,
                   const Rows& dup, const Rows* out, std::int64_t first, std::int64_t end) {
  with_element(dout.dtype, [&](auto g) {
    with_element(gate.dtype, [&](auto in) {
      with_element(dgate.dtype, [&](auto result) {
        using In = decltype(in);
        for (std::int64_t row = first; row < end; ++row)
          backward_row(static_cast<const decltype(g)*>(dout.at(row, 0)),
                       static_cast<const In*>(gate.at(row, 0)),
                       static_cast<const In*>(up.at(row, 0)),
                       static_cast<std::size_t>(gate.columns),
                       static_cast<decltype(result)*>(dgate.at(row, 0)),
                       static_cast<decltype(result)*>(dup.at(row, 0)),
                       out == nullptr ? nullptr : static_cast<In*>(out->at(row, 0)));
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
HWY_EXPORT(weighted_forward_rows);
HWY_EXPORT(weighted_backward_rows);

namespace {

void check_backward(const Rows& dout, const Rows& gate, const Rows& up, const Rows& dgate,
                    const Rows& dup, const Rows* out) {
  ISTHMUS_ASSERT(out == nullptr || (gate.same_shape(*out) && gate.dtype == out->dtype));
  ISTHMUS_ASSERT(gate.same_shape(up) && gate.same_shape(dout) && gate.same_shape(dgate) &&
                 gate.same_shape(dup) && gate.dtype == up.dtype && dgate.dtype == dup.dtype);
}

}  // namespace

void swiglu_forward(ThreadPool& pool, const Rows& gate, const Rows& up, const Rows& out) {
  ISTHMUS_ASSERT(gate.same_shape(up) && gate.same_shape(out) && gate.dtype == up.dtype);
  for_row_tasks(pool, gate.rows, gate.columns,
                [&](std::int64_t first, std::int64_t end, auto, auto) {
                  HWY_DYNAMIC_DISPATCH(forward_rows)(gate, up, out, first, end);
                });
}

void swiglu_backward(ThreadPool& pool, const Rows& dout, const Rows& gate, const Rows& up,
                     const Rows& dgate, const Rows& dup, const Rows* out) {
  check_backward(dout, gate, up, dgate, dup, out);
  for_row_tasks(pool, gate.rows, gate.columns,
                [&](std::int64_t first, std::int64_t end, auto, auto) {
                  HWY_DYNAMIC_DISPATCH(backward_rows)
                  (dout, gate, up, dgate, dup, out, first, end);
                });
}

void weighted_swiglu_forward(ThreadPool& pool, const Rows& gate, const Rows& up,
                             std::span<const float> weights, const Rows& out) {
  ISTHMUS_ASSERT(gate.same_shape(up) && gate.same_shape(out) && gate.dtype == up.dtype &&
                 std::ssize(weights) == gate.rows);
  for_row_tasks(pool, gate.rows, gate.columns,
                [&](std::int64_t first, std::int64_t end, auto, auto) {
                  HWY_DYNAMIC_DISPATCH(weighted_forward_rows)
                  (gate, up, weights.data(), out, first, end);
                });
}

void weighted_swiglu_backward(ThreadPool& pool, const Rows& dout, const Rows& gate, const Rows& up,
                              std::span<const float> weights, const Rows& dgate, const Rows& dup,
                              std::span<float> dweights, const Rows* out) {
  check_backward(dout, gate, up, dgate, dup, out);
  ISTHMUS_ASSERT(std::ssize(weights) == gate.rows && std::ssize(dweights) == gate.rows);
  for_row_tasks(pool, gate.rows, gate.columns,
                [&](std::int64_t first, std::int64_t end, auto, auto) {
                  HWY_DYNAMIC_DISPATCH(weighted_backward_rows)
                  (dout, gate, up, weights.data(), dgate, dup, dweights.data(), out, first, end);
                });
}

}  // namespace isthmus::kernels
#endif

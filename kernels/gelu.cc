#include "kernels/gelu.h"

#include "base/assert.h"
#include "kernels/elements.h"
#include "kernels/row_tasks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gelu.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

template <class D>
struct Normal {
  hn::Vec<D> distribution;  // Φ(x)
  hn::Vec<D> power;         // exp(-x²/2) = sqrt(2π) φ(x)
};

// Φ(-a) = ½ erfc(a / √2) = exp(-a²/2) t Q(t), t = 1 / (1 + 0.305 a), for a = |x|: the form of
// Abramowitz and Stegun 7.1.26 with coefficients of our own. Q was fitted in numpy to mpmath's erfc
// (40 digits) at 400 Chebyshev nodes of t, for a in [0, 14.6], beyond which f32 holds nothing, by
// least squares of the relative error, the weights of the points multiplied by it again and again
// (Lawson), which leaves the least maximum: 1.0e-7. The 0.305 is the best of [0.22, 0.34] by 0.005.
template <class D>
HWY_INLINE Normal<D> normal_of(D tag, hn::Vec<D> x) {
  const auto one = hn::Set(tag, 1.0F);
  const auto half = hn::Set(tag, 0.5F);
  // At 16 the power is 0 already; without this infinity would become NaN here.
  const auto a = hn::Min(hn::Abs(x), hn::Set(tag, 16.0F));
  const auto t = hn::Div(one, hn::MulAdd(a, hn::Set(tag, 0.305F), one));
  auto q = hn::Set(tag, 0.0365963802F);
  q = hn::MulAdd(q, t, hn::Set(tag, -0.152575299F));
  q = hn::MulAdd(q, t, hn::Set(tag, 0.185031235F));
  q = hn::MulAdd(q, t, hn::Set(tag, -0.0373691916F));
  q = hn::MulAdd(q, t, hn::Set(tag, 0.120712362F));
  q = hn::MulAdd(q, t, hn::Set(tag, 0.103510998F));
  q = hn::MulAdd(q, t, hn::Set(tag, 0.122452945F));
  q = hn::MulAdd(q, t, hn::Set(tag, 0.121640608F));
  // What rounding took from a² would be 5e-6 of the power at 13.
  const auto square = hn::Mul(a, a);
  const auto lost = hn::MulSub(a, a, square);
  auto power = exponential(tag, hn::Mul(square, hn::Set(tag, -0.5F)));
  power = hn::NegMulAdd(hn::Mul(power, half), lost, power);
  const auto tail = hn::Mul(power, hn::Mul(t, q));
  return {hn::IfThenElse(hn::Lt(x, hn::Zero(tag)), tail, hn::Sub(one, tail)), power};
}

template <class X, class Y>
void forward_row(const X* x, std::size_t width, Y* y) {
  for_lanes(width, [=](auto tag, std::size_t i) {
    const auto value = load_as_float(tag, x + i);
    store_float(hn::Mul(value, normal_of(tag, value).distribution), tag, y + i);
  });
}

template <class G, class X, class D, class Y>
void backward_row(const G* dy, const X* x, std::size_t width, D* dx, Y* y) {
  for_lanes(width, [=](auto tag, std::size_t i) {
    const auto value = load_as_float(tag, x + i);
    const auto gradient = load_as_float(tag, dy + i);
    const auto normal = normal_of(tag, value);
    const auto density = hn::Mul(normal.power, hn::Set(tag, 0.398942280F));  // 1 / sqrt(2π)
    const auto slope = hn::MulAdd(value, density, normal.distribution);
    if (y != nullptr) store_float(hn::Mul(value, normal.distribution), tag, y + i);
    store_float(hn::Mul(gradient, slope), tag, dx + i);
  });
}

void forward_rows(const Rows& x, const Rows& y, std::int64_t first, std::int64_t end) {
  with_element(x.dtype, [&](auto in) {
    with_element(y.dtype, [&](auto out) {
      for (std::int64_t row = first; row < end; ++row)
        forward_row(static_cast<const decltype(in)*>(x.at(row, 0)),
                    static_cast<std::size_t>(x.columns), static_cast<decltype(out)*>(y.at(row, 0)));
    });
  });
}

void backward_rows(const Rows& dy, const Rows& x, const Rows& dx, const Rows* y, std::int64_t first,
                   std::int64_t end) {
  with_element(dy.dtype, [&](auto g) {
    with_element(x.dtype, [&](auto in) {
      with_element(dx.dtype, [&](auto out) {
        with_element(y == nullptr ? x.dtype : y->dtype, [&](auto again) {
          for (std::int64_t row = first; row < end; ++row)
            backward_row(static_cast<const decltype(g)*>(dy.at(row, 0)),
                         static_cast<const decltype(in)*>(x.at(row, 0)),
                         static_cast<std::size_t>(x.columns),
                         static_cast<decltype(out)*>(dx.at(row, 0)),
                         y == nullptr ? nullptr : static_cast<decltype(again)*>(y->at(row, 0)));
        });
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

void gelu_forward(ThreadPool& pool, const Rows& x, const Rows& y) {
  ISTHMUS_ASSERT(x.same_shape(y));
  for_row_tasks(pool, x.rows, x.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
    HWY_DYNAMIC_DISPATCH(forward_rows)(x, y, first, end);
  });
}

void gelu_backward(ThreadPool& pool, const Rows& dy, const Rows& x, const Rows& dx, const Rows* y) {
  ISTHMUS_ASSERT(x.same_shape(dy) && x.same_shape(dx) && (y == nullptr || x.same_shape(*y)));
  for_row_tasks(pool, x.rows, x.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
    HWY_DYNAMIC_DISPATCH(backward_rows)(dy, x, dx, y, first, end);
  });
}

}  // namespace isthmus::kernels
#endif

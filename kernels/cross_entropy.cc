#include "kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/assert.h"
#include "kernels/elements.h"
#include "kernels/row_tasks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cross_entropy.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

template <class In>
float largest_of(const In* in, std::size_t count) {
  const FloatTag tag;
  const OneFloatTag one;
  const std::size_t lanes = hn::Lanes(tag);
  auto wide = hn::Set(tag, hn::GetLane(load_as_float(one, in)));
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) wide = hn::Max(wide, load_as_float(tag, in + i));
  float largest = hn::GetLane(hn::MaxOfLanes(tag, wide));
  for (; i < count; ++i) {
    const float value = hn::GetLane(load_as_float(one, in + i));
    if (value > largest) largest = value;
  }
  return largest;
}

// Returns the loss; writes the gradient unless `out`, which may be `in`, is null.
template <class In, class Out>
double one_token(const In* in, std::size_t vocabulary, std::size_t target, float factor, Out* out) {
  const OneFloatTag one;
  const float largest = largest_of(in, vocabulary);
  const auto power = [=](auto tag, std::size_t i) {
    return exponential(tag, hn::Sub(load_as_float(tag, in + i), hn::Set(tag, largest)));
  };
  const float at_target = hn::GetLane(load_as_float(one, in + target));
  // f32 keeps the powers where the gradient will be; bf16 would round them.
  constexpr bool kKeeps = sizeof(Out) == sizeof(float);
  const float sum = sum_over(vocabulary, [=](auto tag, std::size_t i) {
    const auto p = power(tag, i);
    if (kKeeps && out != nullptr) store_float(p, tag, out + i);
    return p;
  });
  const double loss = std::log(static_cast<double>(sum)) + static_cast<double>(largest) -
                      static_cast<double>(at_target);
  if (out == nullptr) return loss;
  // One rounding of the target's gradient: computed before `in` may be overwritten.
  const float inverse = factor / sum;
  const float target_gradient = std::exp(at_target - largest) * inverse - factor;
  for_lanes(vocabulary, [=](auto tag, std::size_t i) {
    const auto p = [=] {
      if constexpr (kKeeps)
        return hn::LoadU(tag, out + i);
      else
        return power(tag, i);
    }();
    store_float(hn::Mul(p, hn::Set(tag, inverse)), tag, out + i);
  });
  store_float(hn::Set(one, target_gradient), one, out + target);
  return loss;
}

double token_loss(const Rows& logits, std::int64_t row, std::int32_t target, float factor,
                  const Rows& dlogits) {
  double loss = 0;
  with_element(logits.dtype, [&](auto in) {
    with_element(dlogits.dtype, [&](auto out) {
      using Out = decltype(out);
      loss = one_token(static_cast<const decltype(in)*>(logits.at(row, 0)),
                       static_cast<std::size_t>(logits.columns), static_cast<std::size_t>(target),
                       factor,
                       dlogits.data == nullptr ? nullptr : static_cast<Out*>(dlogits.at(row, 0)));
    });
  });
  return loss;
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(token_loss);

namespace {

CrossEntropySum over_tokens(ThreadPool& pool, const Rows& logits,
                            std::span<const std::int32_t> targets, float factor,
                            const Rows& dlogits, std::span<double> token_losses) {
  ISTHMUS_ASSERT(static_cast<std::int64_t>(targets.size()) == logits.rows &&
                 token_losses.size() == targets.size() && logits.columns > 0);
  ISTHMUS_ASSERT(dlogits.data == nullptr || dlogits.same_shape(logits));
  for_row_tasks(
      pool, logits.rows, logits.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
        for (std::int64_t row = first; row < end; ++row) {
          const std::int32_t target = targets[static_cast<std::size_t>(row)];
          double& loss = token_losses[static_cast<std::size_t>(row)];
          if (target == kIgnoredTarget) {
            loss = 0;
            if (dlogits.data != nullptr)
              std::memset(dlogits.at(row, 0), 0,
                          static_cast<std::size_t>(dlogits.columns) * size_of(dlogits.dtype));
            continue;
          }
          ISTHMUS_ASSERT(target >= 0 && target < logits.columns);
          loss = HWY_DYNAMIC_DISPATCH(token_loss)(logits, row, target, factor, dlogits);
        }
      });
  CrossEntropySum sum;
  for (std::size_t row = 0; row < targets.size(); ++row) {
    sum.loss += token_losses[row];
    sum.tokens += targets[row] != kIgnoredTarget;
  }
  return sum;
}

}  // namespace

CrossEntropySum cross_entropy_forward(ThreadPool& pool, const Rows& logits,
                                      std::span<const std::int32_t> targets,
                                      std::span<double> token_losses) {
  return over_tokens(pool, logits, targets, 0.0F, Rows{}, token_losses);
}

CrossEntropySum cross_entropy_forward_backward(ThreadPool& pool, const Rows& logits,
                                               std::span<const std::int32_t> targets, float factor,
                                               const Rows& dlogits,
                                               std::span<double> token_losses) {
  ISTHMUS_ASSERT(dlogits.data != nullptr);
  return over_tokens(pool, logits, targets, factor, dlogits, token_losses);
}

}  // namespace isthmus::kernels
#endif

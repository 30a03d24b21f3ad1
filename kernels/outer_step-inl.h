// The rule of outer_step.h on vectors, for the kernels that form the delta. Private to kernels/.
#ifndef ISTHMUS_KERNELS_OUTER_STEP_POINTERS_
#define ISTHMUS_KERNELS_OUTER_STEP_POINTERS_

#include <cstddef>

#include "base/assert.h"
#include "kernels/outer_step.h"

namespace isthmus::kernels {

// An OuterStep without templates of std (vectors-inl.h).
struct OuterStepPointers {
  const float* agreed;
  const float* momentum;  // null, as all of it, for the average
  float* next_agreed;
  float* next_momentum;
  float* agreed_at_hand;
  float* momentum_at_hand;
  float rate;
  float momentum_factor;
};

inline OuterStepPointers pointers_of(const OuterStep& step, std::size_t count) {
  const std::size_t of_momentum = step.nesterov ? count : 0;
  ISTHMUS_ASSERT(step.agreed.size() == count && step.next_agreed.size() == count &&
                 step.agreed_at_hand.size() == count && step.momentum.size() == of_momentum &&
                 step.next_momentum.size() == of_momentum &&
                 step.momentum_at_hand.size() == of_momentum);
  return {.agreed = step.agreed.data(),
          .momentum = step.nesterov ? step.momentum.data() : nullptr,
          .next_agreed = step.next_agreed.data(),
          .next_momentum = step.next_momentum.data(),
          .agreed_at_hand = step.agreed_at_hand.data(),
          .momentum_at_hand = step.momentum_at_hand.data(),
          .rate = step.nesterov ? step.nesterov->rate : 0,
          .momentum_factor = step.nesterov ? step.nesterov->momentum_factor : 0};
}

}  // namespace isthmus::kernels

#endif

#if defined(ISTHMUS_KERNELS_OUTER_STEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ISTHMUS_KERNELS_OUTER_STEP_INL_H_
#undef ISTHMUS_KERNELS_OUTER_STEP_INL_H_
#else
#define ISTHMUS_KERNELS_OUTER_STEP_INL_H_
#endif

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

// Element `i` and those that follow it in the vector. No hn::MulAdd: it is fused on some targets
// and not on others.
template <class D>
HWY_INLINE void outer_step_of(D d, const OuterStepPointers& step, std::size_t i, hn::Vec<D> delta) {
  const auto agreed = hn::LoadU(d, step.agreed + i);
  auto change = delta;
  if (step.momentum != nullptr) {
    const auto factor = hn::Set(d, step.momentum_factor);
    const auto m = hn::Add(hn::Mul(factor, hn::LoadU(d, step.momentum + i)), delta);
    const auto direction = hn::Add(delta, hn::Mul(factor, m));
    change = hn::Mul(hn::Set(d, step.rate), direction);
    hn::StoreU(m, d, step.momentum_at_hand + i);
    store_past_caches(m, d, step.next_momentum + i);
  }
  const auto next = hn::Sub(agreed, change);
  hn::StoreU(next, d, step.agreed_at_hand + i);
  store_past_caches(next, d, step.next_agreed + i);
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

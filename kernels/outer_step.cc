#include "kernels/outer_step.h"

#include <hwy/cache_control.h>

#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/outer_step.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/outer_step-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

void step_values(const float* delta, std::size_t count, const OuterStepPointers& step) {
  for_lanes(count,
            [&](auto d, std::size_t i) { outer_step_of(d, step, i, hn::LoadU(d, delta + i)); });
  hwy::FlushStream();  // or a later write of this thread could be seen before these
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(step_values);

void outer_step(std::span<const float> delta, const OuterStep& step) {
  HWY_DYNAMIC_DISPATCH(step_values)(delta.data(), delta.size(), pointers_of(step, delta.size()));
}

}  // namespace isthmus::kernels
#endif

#include "kernels/bf16.h"

#include <cstddef>

#include "base/assert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/bf16.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

void round_values(const float* values, std::size_t count, bf16_t* out) {
  for_lanes(count,
            [=](auto d, std::size_t i) { store_float(load_as_float(d, values + i), d, out + i); });
}

void widen_values(const bf16_t* values, std::size_t count, float* out) {
  for_lanes(count,
            [=](auto d, std::size_t i) { store_float(load_as_float(d, values + i), d, out + i); });
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(round_values);
HWY_EXPORT(widen_values);

void float_to_bf16(std::span<const float> values, std::span<bf16_t> out) {
  ISTHMUS_ASSERT(values.size() == out.size());
  HWY_DYNAMIC_DISPATCH(round_values)(values.data(), values.size(), out.data());
}

void bf16_to_float(std::span<const bf16_t> values, std::span<float> out) {
  ISTHMUS_ASSERT(values.size() == out.size());
  HWY_DYNAMIC_DISPATCH(widen_values)(values.data(), values.size(), out.data());
}

}  // namespace isthmus::kernels
#endif

#include "kernels/outer_arithmetic.h"

#include <cfenv>
#include <cstddef>
#include <cstdint>

#include "base/assert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/outer_arithmetic.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

// No hn::MulAdd in this file: it is fused on some targets and not on others.
HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

bool every_value_is_finite(const float* x, std::size_t count) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes)
    if (!hn::AllTrue(d, hn::IsFinite(hn::LoadU(d, x + i)))) return false;
  const OneFloatTag one;
  for (; i < count; ++i)
    if (!hn::AllTrue(one, hn::IsFinite(hn::LoadU(one, x + i)))) return false;
  return true;
}

bool every_value_is_within(const float* x, std::size_t count, float limit) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const auto within = [=](auto tag, std::size_t i) {
    return hn::AllTrue(tag, hn::Le(hn::Abs(hn::LoadU(tag, x + i)), hn::Set(tag, limit)));
  };
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes)
    if (!within(d, i)) return false;
  for (; i < count; ++i)
    if (!within(OneFloatTag(), i)) return false;
  return true;
}

void subtract_values(const float* a, const float* b, std::size_t count, float* out) {
  for_lanes(count, [=](auto d, std::size_t i) {
    hn::StoreU(hn::Sub(hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, out + i);
  });
}

void add_values(const float* a, const float* b, std::size_t count, float* out) {
  for_lanes(count, [=](auto d, std::size_t i) {
    hn::StoreU(hn::Add(hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, out + i);
  });
}

void scale_values(float weight, const float* x, std::size_t count, float* out) {
  for_lanes(count, [=](auto d, std::size_t i) {
    hn::StoreU(hn::Mul(hn::Set(d, weight), hn::LoadU(d, x + i)), d, out + i);
  });
}

void accumulate_values(float weight, const float* x, std::size_t count, float* inout) {
  for_lanes(count, [=](auto d, std::size_t i) {
    const auto product = hn::Mul(hn::Set(d, weight), hn::LoadU(d, x + i));
    hn::StoreU(hn::Add(hn::LoadU(d, inout + i), product), d, inout + i);
  });
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(every_value_is_finite);
HWY_EXPORT(every_value_is_within);
HWY_EXPORT(subtract_values);
HWY_EXPORT(add_values);
HWY_EXPORT(scale_values);
HWY_EXPORT(accumulate_values);

bool all_finite(std::span<const float> x) {
  return HWY_DYNAMIC_DISPATCH(every_value_is_finite)(x.data(), x.size());
}

bool all_within(std::span<const float> x, float limit) {
  return HWY_DYNAMIC_DISPATCH(every_value_is_within)(x.data(), x.size(), limit);
}

void subtract(std::span<const float> a, std::span<const float> b, std::span<float> out) {
  ISTHMUS_ASSERT(a.size() == b.size() && a.size() == out.size());
  HWY_DYNAMIC_DISPATCH(subtract_values)(a.data(), b.data(), a.size(), out.data());
}

void add(std::span<const float> a, std::span<const float> b, std::span<float> out) {
  ISTHMUS_ASSERT(a.size() == b.size() && a.size() == out.size());
  HWY_DYNAMIC_DISPATCH(add_values)(a.data(), b.data(), a.size(), out.data());
}

void scale(float weight, std::span<const float> x, std::span<float> out) {
  ISTHMUS_ASSERT(x.size() == out.size());
  HWY_DYNAMIC_DISPATCH(scale_values)(weight, x.data(), x.size(), out.data());
}

void accumulate(float weight, std::span<const float> x, std::span<float> inout) {
  ISTHMUS_ASSERT(x.size() == inout.size());
  HWY_DYNAMIC_DISPATCH(accumulate_values)(weight, x.data(), x.size(), inout.data());
}

bool float_environment_is_ieee() {
  volatile float smallest = 0x1p-149F;
  volatile float least_normal = 0x1p-126F;
  const float from_subnormal = smallest * 0x1p30F;  // 0 if inputs are flushed
  const float to_subnormal = least_normal * 0.5F;   // 0 if results are
  return std::fegetround() == FE_TONEAREST && from_subnormal != 0.0F && to_subnormal != 0.0F;
}

}  // namespace isthmus::kernels
#endif

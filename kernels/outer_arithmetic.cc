#include "kernels/outer_arithmetic.h"

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/assert.h"

namespace isthmus::kernels {

bool all_finite(std::span<const float> x) {
  for (const float value : x)
    if ((std::bit_cast<std::uint32_t>(value) & 0x7f800000U) == 0x7f800000U) return false;
  return true;
}

void subtract(std::span<const float> a, std::span<const float> b, std::span<float> out) {
  ISTHMUS_ASSERT(a.size() == b.size() && a.size() == out.size());
  for (std::size_t i = 0; i < a.size(); ++i) out[i] = a[i] - b[i];
}

void add(std::span<const float> a, std::span<const float> b, std::span<float> out) {
  ISTHMUS_ASSERT(a.size() == b.size() && a.size() == out.size());
  for (std::size_t i = 0; i < a.size(); ++i) out[i] = a[i] + b[i];
}

void scale(float weight, std::span<const float> x, std::span<float> out) {
  ISTHMUS_ASSERT(x.size() == out.size());
  for (std::size_t i = 0; i < x.size(); ++i) out[i] = weight * x[i];
}

void accumulate(float weight, std::span<const float> x, std::span<float> inout) {
  ISTHMUS_ASSERT(x.size() == inout.size());
  for (std::size_t i = 0; i < x.size(); ++i) inout[i] = inout[i] + weight * x[i];
}

void outer_average(std::span<const float> delta, std::span<float> agreed) {
  subtract(agreed, delta, agreed);
}

void outer_nesterov(std::span<const float> delta, float rate, float momentum_factor,
                    std::span<float> momentum, std::span<float> agreed) {
  ISTHMUS_ASSERT(delta.size() == momentum.size() && delta.size() == agreed.size());
  for (std::size_t i = 0; i < delta.size(); ++i) {
    momentum[i] = momentum_factor * momentum[i] + delta[i];
    agreed[i] = agreed[i] - rate * (delta[i] + momentum_factor * momentum[i]);
  }
}

bool float_environment_is_ieee() {
  volatile float smallest = 0x1p-149F;
  volatile float least_normal = 0x1p-126F;
  const float from_subnormal = smallest * 2.0F;    // 0 if inputs are flushed
  const float to_subnormal = least_normal * 0.5F;  // 0 if results are
  return std::fegetround() == FE_TONEAREST && from_subnormal != 0.0F && to_subnormal != 0.0F;
}

}  // namespace isthmus::kernels

// Arithmetic on outer state, on which all sites must agree to the bit: IEEE f32, round to nearest
// even, one rounding per operation written here, no fused multiply-add, no reassociation. Equal on
// every instruction set. Spans of one call have one size; outputs may be inputs (the same memory,
// element by element; partial overlap is a bug). Callers cut spans for their own threads.
#pragma once

#include <span>

namespace isthmus::kernels {

bool all_finite(std::span<const float> x);
// No value is larger in magnitude than `limit`, or NaN.
bool all_within(std::span<const float> x, float limit);

// out = a - b
void subtract(std::span<const float> a, std::span<const float> b, std::span<float> out);
// out = a + b
void add(std::span<const float> a, std::span<const float> b, std::span<float> out);
// out = weight * x
void scale(float weight, std::span<const float> x, std::span<float> out);
// inout = inout + (weight * x), rounded twice
void accumulate(float weight, std::span<const float> x, std::span<float> inout);

// True when this thread computes as the rule above needs: subnormals kept (no flush to zero),
// rounding to nearest even. Threads that touch outer state assert it once.
bool float_environment_is_ieee();

}  // namespace isthmus::kernels

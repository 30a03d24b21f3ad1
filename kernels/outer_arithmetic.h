// Arithmetic on outer state, on which all sites must agree to the bit: IEEE f32, round to nearest
// even, one rounding per operation written here, no fused multiply-add, no reassociation. Equal on
// every instruction set. Spans of one call have one size; outputs may be inputs (the same memory,
// element by element; partial overlap is a bug). Callers cut spans for their own threads.
#pragma once

#include <span>

namespace isthmus::kernels {

bool all_finite(std::span<const float> x);

// out = a - b
void subtract(std::span<const float> a, std::span<const float> b, std::span<float> out);
// out = a + b
void add(std::span<const float> a, std::span<const float> b, std::span<float> out);
// out = weight * x
void scale(float weight, std::span<const float> x, std::span<float> out);
// inout = inout + (weight * x), rounded twice
void accumulate(float weight, std::span<const float> x, std::span<float> inout);

// next_agreed = agreed - delta
void outer_average(std::span<const float> delta, std::span<const float> agreed,
                   std::span<float> next_agreed);
// SGD with Nesterov momentum as in PyTorch (the outer optimizer of DiLoCo, Douillard et al. 2023):
//   next_m = (mu * m) + d;  next_agreed = agreed - (rate * (d + (mu * next_m)))
struct Nesterov {
  float rate = 0;
  float momentum_factor = 0;
};
void outer_nesterov(std::span<const float> delta, const Nesterov& rule,
                    std::span<const float> momentum, std::span<const float> agreed,
                    std::span<float> next_momentum, std::span<float> next_agreed);

// True when this thread computes as the rule above needs: subnormals kept (no flush to zero),
// rounding to nearest even. Threads that touch outer state assert it once.
bool float_environment_is_ieee();

}  // namespace isthmus::kernels

// OuterStep: the outer optimizer's rule over a run of elements, in one pass over memory. What it
// reads and writes is larger than any cache, so the pass is bound by memory: whoever has the delta
// in another form (block_int8.h) forms it in the same pass. Arithmetic as in outer_arithmetic.h.
#pragma once

#include <optional>
#include <span>

namespace isthmus::kernels {

// SGD with Nesterov momentum as in PyTorch (the outer optimizer of DiLoCo, Douillard et al. 2023):
//   next_m = (mu * m) + delta;  next_agreed = agreed - (rate * (delta + (mu * next_m)))
struct Nesterov {
  float rate = 0;
  float momentum_factor = 0;
};

// All spans have one size, but for those that may be empty. next_agreed may be the memory of agreed
// and next_momentum that of momentum; nothing else overlaps.
struct OuterStep {
  std::optional<Nesterov> nesterov = {};        // else the average: next_agreed = agreed - delta
  std::span<const float> agreed, momentum;      // momentum: empty for the average, as next_momentum
  std::span<float> next_agreed, next_momentum;  // past the caches, where aligned to vectors
  // The same once more, for who reads it while it is in a cache.
  std::span<float> agreed_at_hand, momentum_at_hand;
};

void outer_step(std::span<const float> delta, const OuterStep& step);

}  // namespace isthmus::kernels

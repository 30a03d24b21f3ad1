// AdamW (Loshchilov and Hutter 2019) as PyTorch's torch.optim.AdamW: decoupled decay, bias
// corrections, f32 masters. One pass over memory.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/thread_pool.h"

namespace isthmus::kernels {

struct AdamWStep {
  float learning_rate = 1e-3F;
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float epsilon = 1e-8F;
  float weight_decay = 0.0F;    // param -= learning_rate * weight_decay * param
  std::int64_t step = 1;        // 1 for the first update
  float gradient_scale = 1.0F;  // multiplies the gradient first: clipping, averaging
};

// All spans of one size; parameter, moment1 and moment2 are updated. `bf16_copy` receives the new
// parameters rounded to bf16, or is empty.
void adamw(ThreadPool& pool, const AdamWStep& step, std::span<const float> gradient,
           std::span<float> parameter, std::span<float> moment1, std::span<float> moment2,
           std::span<bf16_t> bf16_copy);

}  // namespace isthmus::kernels

// SwiGLU (Shazeer 2020): out = silu(gate) * up, elementwise; silu(x) = x / (1 + exp(-x)).
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "kernels/rows.h"

namespace isthmus::kernels {

// gate, up, out [rows, width], of any dtypes.
void swiglu_forward(ThreadPool& pool, const Rows& gate, const Rows& up, const Rows& out);

// dgate and dup are set; they may be gate and up. With `out`, of the dtype of gate, what forward
// made is made again, to the same bits.
void swiglu_backward(ThreadPool& pool, const Rows& dout, const Rows& gate, const Rows& up,
                     const Rows& dgate, const Rows& dup, const Rows* out = nullptr);

// out = weight * silu(gate) * up with a weight per row, as an expert's for a token: what follows is
// linear, so that the weight may come before it.
void weighted_swiglu_forward(ThreadPool& pool, const Rows& gate, const Rows& up,
                             std::span<const float> weights, const Rows& out);

// As swiglu_backward; dweights is set.
void weighted_swiglu_backward(ThreadPool& pool, const Rows& dout, const Rows& gate, const Rows& up,
                              std::span<const float> weights, const Rows& dgate, const Rows& dup,
                              std::span<float> dweights, const Rows* out = nullptr);

}  // namespace isthmus::kernels

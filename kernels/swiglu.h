// SwiGLU (Shazeer 2020): out = silu(gate) * up, elementwise; silu(x) = x / (1 + exp(-x)).
#pragma once

#include "base/thread_pool.h"
#include "kernels/rows.h"

namespace isthmus::kernels {

// gate, up, out [rows, width], of any dtypes.
void swiglu_forward(ThreadPool& pool, const Rows& gate, const Rows& up, const Rows& out);

// dgate and dup are set; they may be gate and up. With `out`, of the dtype of gate, what forward
// made is made again, to the same bits.
void swiglu_backward(ThreadPool& pool, const Rows& dout, const Rows& gate, const Rows& up,
                     const Rows& dgate, const Rows& dup, const Rows* out = nullptr);

}  // namespace isthmus::kernels

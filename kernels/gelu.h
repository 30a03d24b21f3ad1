// GELU (Hendrycks and Gimpel 2016), with the error function: y = x Φ(x), where Φ is the normal
// distribution. Arithmetic in f32; Φ is within 2e-7, and below 0, where it falls to the smallest
// f32, relatively within 1e-6 (5e-6 where a CPU cannot fuse multiply-adds). At ±infinity and NaN as
// PyTorch: the limit is not taken.
#pragma once

#include "base/thread_pool.h"
#include "kernels/rows.h"

namespace isthmus::kernels {

// x, y [rows, width], of any dtypes. y may be x.
void gelu_forward(ThreadPool& pool, const Rows& x, const Rows& y);

// dx is set: dy (Φ(x) + x φ(x)), where φ = Φ'. All [rows, width], of any dtypes; dx may be dy or x.
// With `y`, which is neither, what forward made is made again, to the same bits.
void gelu_backward(ThreadPool& pool, const Rows& dy, const Rows& x, const Rows& dx,
                   const Rows* y = nullptr);

}  // namespace isthmus::kernels

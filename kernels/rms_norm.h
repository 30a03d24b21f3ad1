// RMSNorm (Zhang and Sennrich 2019): y = x / sqrt(mean(x²) + epsilon) * weight, per row. Forward
// and backward; arithmetic in f32; results do not depend on the number of threads.
#pragma once

#include <cstddef>
#include <span>

#include "base/thread_pool.h"
#include "kernels/rows.h"

namespace isthmus::kernels {

// x, y [rows, d]; weight [d]; inverse_rms [rows], kept for backward. y may be x.
void rms_norm_forward(ThreadPool& pool, const Rows& x, std::span<const float> weight, float epsilon,
                      const Rows& y, std::span<float> inverse_rms);

// Floats of scratch that rms_norm_backward needs.
std::size_t rms_norm_scratch_floats(std::int64_t rows, std::int64_t columns);

// dy, x, dx [rows, d]. dx is set, or with `accumulate` added to (the residual's gradient is already
// there); dx may be dy. dweight [d] is added to, or empty if the weight does not train. With `y`
// [rows, d] what forward made is made again, to the same bits.
void rms_norm_backward(ThreadPool& pool, const Rows& dy, const Rows& x,
                       std::span<const float> weight, std::span<const float> inverse_rms,
                       const Rows& dx, bool accumulate, std::span<float> dweight,
                       std::span<float> scratch, const Rows* y = nullptr);

}  // namespace isthmus::kernels

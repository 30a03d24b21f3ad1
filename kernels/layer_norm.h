// LayerNorm (Ba et al. 2016): y = (x - mean) / sqrt(variance + epsilon) * weight + bias, per row.
// Forward and backward; arithmetic in f32, the variance from the deviations, since mean(x²) - mean²
// would cancel; results do not depend on the number of threads.
#pragma once

#include <cstddef>
#include <span>

#include "base/thread_pool.h"
#include "kernels/rows.h"

namespace isthmus::kernels {

// x, y [rows, d]; weight, bias [d]; mean and inverse_deviation, 1 / sqrt(variance + epsilon),
// [rows], kept for backward. y may be x.
void layer_norm_forward(ThreadPool& pool, const Rows& x, std::span<const float> weight,
                        std::span<const float> bias, float epsilon, const Rows& y,
                        std::span<float> mean, std::span<float> inverse_deviation);

// Floats of scratch that layer_norm_backward needs.
std::size_t layer_norm_scratch_floats(std::int64_t rows, std::int64_t columns);

// dy, x, dx [rows, d], of any dtypes. dx is set, or with `accumulate` added to; it may be dy.
// dweight and dbias [d] are added to, or both empty if they do not train: then no scratch either.
void layer_norm_backward(ThreadPool& pool, const Rows& dy, const Rows& x,
                         std::span<const float> weight, std::span<const float> mean,
                         std::span<const float> inverse_deviation, const Rows& dx, bool accumulate,
                         std::span<float> dweight, std::span<float> dbias,
                         std::span<float> scratch);

}  // namespace isthmus::kernels

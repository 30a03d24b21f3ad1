// RMSNorm of each head (kernels/rms_norm.h), then the rotation by its position (kernels/rope.h), in
// one pass and without rounding between the two: what Qwen3 does to queries and keys. Arithmetic in
// f32; results do not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/rows.h"

namespace isthmus::kernels {

// x, y [rows, heads * d], of one dtype; weight [d]; row r has position r % sequence; table
// [positions, d] of rope_table(); inverse_rms [rows * heads], kept for backward. y may be x.
void norm_rope_forward(ThreadPool& pool, const Rows& x, std::span<const float> weight,
                       float epsilon, std::int64_t sequence, std::span<const float> table,
                       const Rows& y, std::span<float> inverse_rms);

// Floats of scratch that norm_rope_backward needs.
std::size_t norm_rope_scratch_floats(std::int64_t rows, std::int64_t columns,
                                     std::int64_t head_dim);

// dy, x, dx [rows, heads * d]; dx is set, and may be dy. dweight [d] is added to, or empty if the
// weight does not train.
void norm_rope_backward(ThreadPool& pool, const Rows& dy, const Rows& x,
                        std::span<const float> weight, std::span<const float> inverse_rms,
                        std::int64_t sequence, std::span<const float> table, const Rows& dx,
                        std::span<float> dweight, std::span<float> scratch);

}  // namespace isthmus::kernels

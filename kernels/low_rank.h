// What a low-rank adapter adds to a linear layer (LoRA, Hu et al. 2021, section 4.1), as the
// layer's input times A is made by kernels/gemm.h:
//
//   t  = x · Aᵀ             t [rows, rank]
//   y += s · t · Bᵀ         y [rows, out], B [out, rank]
//
// Ranks are small, so that these products are bounded by how often y and its gradient pass through
// memory, which is once here. t, B and the gradients of t and y have one dtype, f32 or bf16, y
// itself either; sums are f32, in one order whatever the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/rows.h"

namespace isthmus::kernels {

inline constexpr std::int64_t kLowRankMax = 1024;

// `scratch`: low_rank_scratch_floats(). y and sum may be one place.
std::size_t low_rank_scratch_floats(std::int64_t out, std::int64_t rank);
void low_rank_forward(ThreadPool& pool, const Rows& t, const Rows& b, float scale, const Rows& y,
                      const Rows& sum, std::span<float> scratch);

// dt = s · dy · B
void low_rank_input_gradient(ThreadPool& pool, const Rows& dy, const Rows& b, float scale,
                             const Rows& dt);

// dB = s · dyᵀ · t, or added to; f32.
void low_rank_weight_gradient(ThreadPool& pool, const Rows& dy, const Rows& t, float scale,
                              const Rows& db, bool accumulate);

}  // namespace isthmus::kernels

// A linear layer of few rows: y [rows, out] = x [rows, in] · Wᵀ. The weight is read once for all of
// them, and its bytes are what it takes, as where a model continues a text token by token; for more
// rows kernels/gemm.h is faster. A row's result depends on that row and the weight alone.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/rows.h"

namespace isthmus::kernels {

inline constexpr std::int64_t kFewRows = 8;  // at most

// x [rows, in] and weight [out, in] of one dtype, y [rows, out]; sums in f32, of bf16 too.
void few_rows_product(ThreadPool& pool, const Rows& x, const Rows& weight, const Rows& y);

}  // namespace isthmus::kernels

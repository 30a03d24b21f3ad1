// Transpose: a matrix of f32 or bf16 to f32, rows becoming columns. Private to kernels/: a weight
// gradient's left factor is read down its columns, far apart in memory, which oneDNN does slowly.
#pragma once

#include <cstdint>

#include "kernels/rows.h"

namespace isthmus::kernels {

// out [from.columns][out_stride], of which the first from.rows of each row are set.
void transpose_to_float(const Rows& from, float* out, std::int64_t out_stride);

}  // namespace isthmus::kernels

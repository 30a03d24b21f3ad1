// Sums and copies of activations between the layers.
#pragma once

#include "base/thread_pool.h"
#include "kernels/rows.h"

namespace isthmus::kernels {

// out = x + y, summed in f32; dtypes may differ, shapes may not; out may be x or y. The gradient of
// a sum is the same for both: backward needs this only where two gradients meet.
void residual_add(ThreadPool& pool, const Rows& x, const Rows& y, const Rows& out);

// out = x, converted where the dtypes differ.
void copy_rows(ThreadPool& pool, const Rows& x, const Rows& out);

}  // namespace isthmus::kernels

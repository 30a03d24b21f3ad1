// What the threads of a pool multiply and add at most, by a loop that only does that, from
// registers: the peak that products are compared with.
#pragma once

#include "base/clock.h"
#include "base/dtype.h"
#include "base/thread_pool.h"

namespace isthmus::kernels {

// FLOP/s of all threads of the pool together, the most seen in about so much time. bf16: pairs of
// products summed in f32, on a CPU that has an instruction for them; else 0.
double multiply_peak(ThreadPool& pool, DType dtype, const Clock& clock, Nanoseconds time);

}  // namespace isthmus::kernels

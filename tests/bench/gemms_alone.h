// GemmsAlone: the matrix products of a training step and nothing else, with the plans that the step
// has and operands that are as cold as the step's: what a step cannot be faster than.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/gemm.h"
#include "runtime/cpu_device.h"

namespace isthmus::bench {

class GemmsAlone {
 public:
  // `gemms` in the order in which they run.
  GemmsAlone(std::vector<kernels::GemmShape> gemms, ThreadPool& pool);

  // Seconds.
  double run();
  double flops() const;
  // FLOP/s of the one that is fastest by itself, of all run()s.
  double best_flops_per_second() const { return best_; }

 private:
  // Other bytes than the last ones.
  static std::byte* cold(runtime::AlignedMemory& memory, std::size_t& next, std::size_t bytes);

  std::vector<kernels::GemmShape> gemms_;
  runtime::CpuDevice device_;
  std::vector<const kernels::GemmPlan*> plans_;  // one for each of them
  runtime::AlignedMemory operands_, results_;
  std::size_t next_operand_ = 0, next_result_ = 0;
  double best_ = 0;
};

}  // namespace isthmus::bench

// CpuDevice: what the ops of a rank share on its CPU threads: the pool, one GEMM plan per shape,
// working memory, and the loss they report. Ops of one device run one after another.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/gemm.h"
#include "kernels/grouped_gemm.h"
#include "kernels/routing.h"
#include "runtime/batch_loss.h"

namespace isthmus::runtime {

// Bytes at an address that suits vectors; zero at first.
class AlignedMemory {
 public:
  explicit AlignedMemory(std::size_t bytes = 0);
  std::span<std::byte> bytes() const { return {data_.get(), bytes_}; }
  template <class T>
  std::span<T> of() const {
    return {reinterpret_cast<T*>(data_.get()), bytes_ / sizeof(T)};
  }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t bytes_ = 0;
};

class CpuDevice {
 public:
  explicit CpuDevice(ThreadPool& thread_pool)
      : pool(thread_pool), workers(thread_pool.workers()), gemm_scratch_(workers) {}
  // For ops that are prepared and never run, as if there were so many threads: what they reserve is
  // counted alone.
  static CpuDevice counted(ThreadPool& nobody, std::size_t threads) { return {nobody, threads}; }
  CpuDevice(const CpuDevice&) = delete;
  CpuDevice& operator=(const CpuDevice&) = delete;

  // Made at the first call for a shape; lives as long as the device.
  const kernels::GemmPlan& gemm(const kernels::GemmShape& shape);
  const kernels::GroupedGemmPlan& gemm(const kernels::GroupedGemmShape& shape);

  void fill_zero(std::span<float> values);

  // While ops are prepared they reserve what they need; when they run, each gets the front of the
  // same memory.
  void reserve_scratch(std::size_t bytes);
  std::span<std::byte> scratch() const { return scratch_.bytes(); }
  // Bytes that all ops prepared so far work in, their products too.
  std::size_t working_bytes() const { return reserved_ + gemm_scratch_.bytes(); }
  template <class T>
  std::span<T> scratch_of(std::size_t elements) const {
    return scratch_.of<T>().first(elements);
  }

  ThreadPool& pool;
  const std::size_t workers;
  BatchLoss loss;                         // of the run so far
  kernels::RouterLossSums router_losses;  // likewise; means over the layers that have experts
  bool first_micro_batch = false;         // of a step: the run's

 private:
  CpuDevice(ThreadPool& nobody, std::size_t threads)
      : pool(nobody), workers(threads), gemm_scratch_(threads, true), counted_(true) {}

  kernels::GemmScratch gemm_scratch_;
  std::vector<std::unique_ptr<kernels::GemmPlan>> plans_;
  std::vector<std::unique_ptr<kernels::GroupedGemmPlan>> grouped_plans_;
  std::size_t reserved_ = 0;
  bool counted_ = false;
  AlignedMemory scratch_;
};

}  // namespace isthmus::runtime

// What the products of kernels/gemm.h and kernels/grouped_gemm.h are made of: one oneDNN primitive
// per tile shape, run by one thread of the pool with that worker's own memory. Private to kernels/.
#pragma once

#include <array>
#include <cstdlib>
#include <dnnl.hpp>
#include <memory>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/thread_pool.h"
#include "kernels/bf16.h"
#include "kernels/gemm.h"

namespace isthmus::kernels {

inline constexpr std::size_t kGemmAlignment = 64;  // bytes
// Measured on CPUs with 1 and 2 MiB of second-level cache: wider tiles fall out of it, narrower
// ones copy their operands too often. Weight gradients have few columns and a long inner side.
inline constexpr std::int64_t kTileRowsMax = 192;
inline constexpr std::int64_t kTileColumnsMax = 512;
inline constexpr std::int64_t kGradientTileColumnsMax = 1024;
// Rows of a whole number of pages apart: a column of them lies in one set of every cache.
inline constexpr std::int64_t kPageFloats = 1024;

// Memory that grows and does not keep what was in it.
class GemmBuffer {
 public:
  void grow(std::size_t bytes) {
    if (bytes <= bytes_) return;
    bytes_ = (bytes + kGemmAlignment - 1) / kGemmAlignment * kGemmAlignment;
    memory_.reset(std::aligned_alloc(kGemmAlignment, bytes_));
    ISTHMUS_ASSERT(memory_ != nullptr);
  }
  void* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> memory_;
  std::size_t bytes_ = 0;
};

inline std::size_t offset_bytes(std::int64_t elements, DType dtype) {
  return static_cast<std::size_t>(elements) * size_of(dtype);
}

inline void* advance(const void* p, std::int64_t elements, DType dtype) {
  return const_cast<char*>(static_cast<const char*>(p)) + offset_bytes(elements, dtype);
}

inline dnnl::memory::data_type dnnl_type(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

// A matrix whose rows and columns may lie apart.
inline dnnl::memory::desc matrix_layout(std::int64_t m, std::int64_t n, DType dtype,
                                        std::int64_t row_stride, std::int64_t column_stride) {
  return {{m, n}, dnnl_type(dtype), {row_stride, column_stride}};
}

// How one side of a matrix is cut: equal lengths, the last one shorter.
struct Cut {
  std::int64_t total = 0;
  std::int64_t length = 0;

  std::int64_t pieces() const { return (total + length - 1) / length; }
  std::int64_t first(std::int64_t piece) const { return piece * length; }
  std::int64_t size(std::int64_t piece) const { return std::min(length, total - first(piece)); }
  bool is_last_and_shorter(std::int64_t piece) const { return size(piece) < length; }
};

// At most `longest`, in an even number of pieces where that is more than one, so that two or four
// threads finish together; lengths a multiple of `step`.
Cut cut_evenly(std::int64_t total, std::int64_t longest, std::int64_t step);

void convert_to_float(ThreadPool& pool, const bf16_t* in, std::int64_t count, float* out);
// A tile of sums [m, n] into rows of bf16 that are `stride` apart.
void round_tile(const float* tile, std::int64_t m, std::int64_t n, bf16_t* out,
                std::int64_t stride);

struct GemmScratch::Memory {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  struct Worker {
    dnnl::stream stream;
    GemmBuffer scratchpad;
    GemmBuffer a_tile;  // transposed
    GemmBuffer c_tile;  // in f32, where bf16 is not native
  };
  std::vector<Worker> workers;
  GemmBuffer a, b;    // in f32, where bf16 is not native
  GemmBuffer packed;  // b, for the run() that is under way
};

// One oneDNN primitive and, per worker, the memory objects that its arguments are set in.
class BoundPrimitive {
 public:
  BoundPrimitive() = default;

  // c = a · b, or c += a · b.
  static BoundPrimitive matmul(GemmScratch::Memory& scratch, const dnnl::memory::desc& a,
                               const dnnl::memory::desc& b, const dnnl::memory::desc& c,
                               bool accumulate);
  // Lays a matrix out anew.
  static BoundPrimitive reorder(GemmScratch::Memory& scratch, const dnnl::memory::desc& from,
                                const dnnl::memory::desc& to);

  // The layout oneDNN chose, where it was given the choice.
  const dnnl::memory::desc& b_layout() const { return b_layout_; }

  // Pointers in the order the arguments were given.
  template <std::size_t N>
  void execute(const GemmScratch::Memory& scratch, std::size_t worker,
               const std::array<void*, N>& pointers) const {
    execute(scratch, worker, pointers.data(), N);
  }

 private:
  struct Bound {
    std::vector<dnnl::memory> memories;  // owners of what `arguments` points to
    std::vector<dnnl_exec_arg_t> arguments;
  };

  void execute(const GemmScratch::Memory& scratch, std::size_t worker, void* const* pointers,
               std::size_t count) const;
  void bind(GemmScratch::Memory& scratch, dnnl::primitive primitive,
            const std::vector<std::pair<int, dnnl::memory::desc>>& arguments,
            const dnnl::memory::desc& scratchpad);

  dnnl::primitive primitive_;
  dnnl::memory::desc b_layout_;
  std::vector<Bound> bound_;  // one per worker
};

}  // namespace isthmus::kernels

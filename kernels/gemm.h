// GEMM: the three products of a linear layer, by our own loops over panels (kernels/panels.h).
// A plan is made once per shape, before the first step; running it allocates nothing. The result
// does not depend on the number of threads; in f32, CPUs that multiply and add in one rounding have
// the same.
//
// With tokens T, inputs I, outputs O, X [T, I], W [O, I], dY [T, O], all dense and row-major:
//   nt   Y  = X · Wᵀ      m = T, n = O, k = I    a = X,  b = W
//   nn   dX = dY · W      m = T, n = I, k = O    a = dY, b = W
//   tn   dW = dYᵀ · X     m = O, n = I, k = T    a = dY, b = X   (accumulate: dW += dYᵀ · X)
//
// Inputs f32: output f32. Inputs bf16: output f32 or bf16, sums in f32. A CPU that does not
// multiply bf16 natively keeps it in memory and multiplies in f32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/dtype.h"
#include "base/thread_pool.h"

namespace isthmus::kernels {

// Whether bf16 is multiplied as such: the CPU has AVX512_BF16 and is faster with it than in f32.
bool bf16_gemm_is_native();

enum class GemmForm : std::uint8_t {
  nt,  // c [m, n] = a [m, k] · b [n, k]ᵀ
  nn,  // c [m, n] = a [m, k] · b [k, n]
  tn,  // c [m, n] = a [k, m]ᵀ · b [k, n]
};

struct GemmShape {
  GemmForm form = GemmForm::nt;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  DType input = DType::f32;   // of a and b
  DType output = DType::f32;  // of c
  bool accumulate = false;    // c += instead of c =; output f32 only
  bool operator==(const GemmShape&) const = default;
  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};

// Working memory per pool thread, shared by all plans of a rank. Plans enlarge it when they are
// made, never when they run. Two plans that share it must not run at the same time.
class GemmScratch {
 public:
  // `counted`: for plans that never run; bytes() tells what they would work in.
  explicit GemmScratch(std::size_t workers, bool counted = false);
  ~GemmScratch();
  GemmScratch(const GemmScratch&) = delete;
  GemmScratch& operator=(const GemmScratch&) = delete;

  std::size_t bytes() const;

  struct Memory;
  Memory& memory() const { return *memory_; }

 private:
  std::unique_ptr<Memory> memory_;
};

class GemmPlan {
 public:
  // `scratch` must outlive the plan and have been made for as many workers as the pool has.
  // `native_bf16` false multiplies bf16 in f32 (tests force it).
  GemmPlan(const GemmShape& shape, GemmScratch& scratch, bool native_bf16 = bf16_gemm_is_native());
  ~GemmPlan();
  GemmPlan(GemmPlan&&) noexcept;
  GemmPlan& operator=(GemmPlan&&) noexcept;

  const GemmShape& shape() const;

  // a, b, c as the form says. c must not overlap a or b.
  void run(ThreadPool& pool, const void* a, const void* b, void* c) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace isthmus::kernels

// GroupedGemm: the three products of linear layers side by side, one for each group of rows, as the
// experts of a layer: how many rows a group has is known only when a product runs.
//
// With rows R of groups g = 0, 1, …, that begin at offsets[g], and weights W_g [O, I]:
//
//            ┌───────────┐ offsets[0] = 0
//   rows of  │ group 0   │ ─── · W_0
//            ├───────────┤ offsets[1]        nt   y  [R, O] = x [R, I] · W_gᵀ
//            │ group 1   │ ─── · W_1         nn   dx [R, I] = dy [R, O] · W_g
//            ├───────────┤ offsets[2]        tn   dW_g [O, I] = dyᵀ · x over the rows of g
//            └───────────┘
//
// Running a plan allocates nothing. The pieces of all groups are handed out at once. Results depend
// on the shapes, the offsets and the values alone. Dtypes are those of kernels/gemm.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/gemm.h"

namespace isthmus::kernels {

struct GroupedGemmShape {
  GemmForm form = GemmForm::nt;
  std::int64_t groups = 0;
  std::int64_t rows_max = 0;  // of all groups together
  std::int64_t out = 0;       // of a W_g
  std::int64_t in = 0;
  DType input = DType::f32;   // of both operands
  DType output = DType::f32;  // of the result
  bool accumulate = false;    // tn alone, output f32 only
  bool operator==(const GroupedGemmShape&) const = default;
};

class GroupedGemmPlan {
 public:
  // As GemmPlan.
  GroupedGemmPlan(const GroupedGemmShape& shape, GemmScratch& scratch,
                  bool native_bf16 = bf16_gemm_is_native());
  ~GroupedGemmPlan();
  GroupedGemmPlan(GroupedGemmPlan&&) noexcept;
  GroupedGemmPlan& operator=(GroupedGemmPlan&&) noexcept;

  const GroupedGemmShape& shape() const;

  // nt, nn: a are rows, b the weights of all groups one after another, c rows. tn: a are the rows
  // of dy, b those of x, c the gradients of all weights. `offsets`: groups + 1 of them, ascending
  // from 0. Rows from the last one on are neither read nor written. c
  // must not overlap a or b.
  void run(ThreadPool& pool, const void* a, const void* b, void* c,
           std::span<const std::int32_t> offsets) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace isthmus::kernels

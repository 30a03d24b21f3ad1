// Products: the three matrix products of a linear layer over some rows, as ops prepare them and as
// the cost model counts them.
//
//     y [rows, out] = x [rows, in] · Wᵀ     dx = dy · W     dW [out, in] = dyᵀ · x
#pragma once

#include <cstdint>

#include "kernels/gemm.h"
#include "kernels/grouped_gemm.h"
#include "runtime/routing.h"

namespace isthmus::runtime {

struct Products {
  std::int64_t rows = 0, out = 0, in = 0;
  DType operand = DType::f32;  // dtype of x, W and dy

  kernels::GemmShape forward(DType output) const {
    return {kernels::GemmForm::nt, rows, out, in, operand, output, false};
  }
  kernels::GemmShape input_gradient(DType output, bool accumulate) const {
    return {kernels::GemmForm::nn, rows, in, out, operand, output, accumulate};
  }
  kernels::GemmShape weight_gradient(bool accumulate) const {
    return {kernels::GemmForm::tn, out, in, rows, operand, DType::f32, accumulate};
  }
};

// The same of a layer's experts; a GroupedGemmShape has the rows of all.
struct GroupedProducts {
  const Routing& routing;
  std::int64_t out = 0, in = 0;
  DType operand = DType::f32;

  kernels::GroupedGemmShape forward(DType output) const {
    return shape(kernels::GemmForm::nt, output, false);
  }
  kernels::GroupedGemmShape input_gradient(DType output) const {
    return shape(kernels::GemmForm::nn, output, false);
  }
  kernels::GroupedGemmShape weight_gradient(bool accumulate) const {
    return shape(kernels::GemmForm::tn, DType::f32, accumulate);
  }

 private:
  kernels::GroupedGemmShape shape(kernels::GemmForm form, DType output, bool accumulate) const {
    return {form,   routing.experts, routing.shape().rows_max(), out, in, operand,
            output, accumulate};
  }
};

}  // namespace isthmus::runtime

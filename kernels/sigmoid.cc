#include "kernels/sigmoid.h"

#include <cmath>

#include "base/assert.h"
#include "kernels/bf16.h"

namespace isthmus::kernels {

void sigmoid_forward(const Rows& x, const Rows& y) {
  ISTHMUS_ASSERT(x.same_shape(y) && x.dtype == DType::f32 && y.dtype == DType::f32);
  for (std::int64_t r = 0; r < x.rows; ++r)
    for (std::int64_t c = 0; c < x.columns; ++c)
      *static_cast<float*>(y.at(r, c)) =
          1.0F / (1.0F + std::exp(-*static_cast<const float*>(x.at(r, c))));
}

void sigmoid_backward(const Rows& dy, const Rows& y, const Rows& dx) {
  ISTHMUS_ASSERT(dy.same_shape(y) && dy.same_shape(dx) && dy.dtype == DType::f32 &&
                 y.dtype == DType::f32);
  for (std::int64_t r = 0; r < y.rows; ++r)
    for (std::int64_t c = 0; c < y.columns; ++c) {
      const float s = *static_cast<const float*>(y.at(r, c));
      const float gradient = *static_cast<const float*>(dy.at(r, c)) * s * (1.0F - s);
      if (dx.dtype == DType::bf16)
        *static_cast<bf16_t*>(dx.at(r, c)) = to_bf16(gradient);
      else
        *static_cast<float*>(dx.at(r, c)) = gradient;
    }
}

}  // namespace isthmus::kernels

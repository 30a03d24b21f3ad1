// The logistic function, 1 / (1 + exp(−x)), of a number per token: what weighs a shared expert. A
// few values beside the products around them, so that they are computed one after the other.
#pragma once

#include <span>

#include "kernels/rows.h"

namespace isthmus::kernels {

// x, y [rows, columns], f32.
void sigmoid_forward(const Rows& x, const Rows& y);

// y: what forward made, and dy its gradient, both f32. dx, of any dtype, is set.
void sigmoid_backward(const Rows& dy, const Rows& y, const Rows& dx);

}  // namespace isthmus::kernels

// Error feedback (Seide et al. 2014; Karimireddy et al. 2019): what quantisation cut off, or what a
// step left out, rides in the next contribution. Pure functions over one slice; who holds the
// buffers, and when a record decides, is the outer step's business.
//
//   pseudo_gradient ──► quantity = pseudo_gradient + feedback ──► encode ──► bytes
//                               │                                             │
//                               └──────► residual = quantity − decode(bytes) ◄┘
//
//   the record names the contribution:   next feedback = residual
//   it does not:                         next feedback = residual + decode(bytes), all of it
//
// The arithmetic is that of kernels/outer_arithmetic.h: f32, one rounding per operation, equal bits
// everywhere. Spans of one call have one size; an output may be one of the inputs.
#pragma once

#include <span>

#include "kernels/outer_arithmetic.h"

namespace isthmus::compress {

// How far the inner steps went: the last agreed parameters minus the contributed ones.
inline void form_pseudo_gradient(std::span<const float> agreed, std::span<const float> contributed,
                                 std::span<float> pseudo_gradient) {
  kernels::subtract(agreed, contributed, pseudo_gradient);
}

// What is to be encoded.
inline void form_quantity(std::span<const float> pseudo_gradient, std::span<const float> feedback,
                          std::span<float> quantity) {
  kernels::add(pseudo_gradient, feedback, quantity);
}

// `decoded` comes from the bytes that were sent, decoded as a receiver does.
inline void form_residual(std::span<const float> quantity, std::span<const float> decoded,
                          std::span<float> residual) {
  kernels::subtract(quantity, decoded, residual);
}

// Of a contribution that the record does not name.
inline void carry_all(std::span<const float> residual, std::span<const float> decoded,
                      std::span<float> feedback) {
  kernels::add(residual, decoded, feedback);
}

}  // namespace isthmus::compress

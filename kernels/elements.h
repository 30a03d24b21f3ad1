// Elements: choosing a template by dtype. Private to kernels/.
#pragma once

#include "base/dtype.h"

namespace isthmus::kernels {

// Calls body with a value of the element type of `dtype`.
template <class Body>
void with_element(DType dtype, const Body& body) {
  if (dtype == DType::bf16)
    body(bf16_t{});
  else
    body(float{});
}

}  // namespace isthmus::kernels

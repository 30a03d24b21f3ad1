// Elements: reading and writing f32 or bf16 memory as f32, one value at a time, and choosing the
// template by dtype. Private to kernels/.
#pragma once

#include "base/dtype.h"
#include "kernels/bf16.h"

namespace isthmus::kernels {

inline float load(const float* p) { return *p; }
inline float load(const bf16_t* p) { return to_float(*p); }
inline void store(float value, float* p) { *p = value; }
inline void store(float value, bf16_t* p) { *p = to_bf16(value); }

// Calls body with a value of the element type of `dtype`.
template <class Body>
void with_element(DType dtype, const Body& body) {
  if (dtype == DType::bf16)
    body(bf16_t{});
  else
    body(float{});
}

}  // namespace isthmus::kernels

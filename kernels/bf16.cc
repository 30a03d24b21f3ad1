#include "kernels/bf16.h"

#include <cstddef>

#include "base/assert.h"

namespace isthmus::kernels {

void float_to_bf16(std::span<const float> values, std::span<bf16_t> out) {
  ISTHMUS_ASSERT(values.size() == out.size());
  for (std::size_t i = 0; i < values.size(); ++i) out[i] = to_bf16(values[i]);
}

void bf16_to_float(std::span<const bf16_t> values, std::span<float> out) {
  ISTHMUS_ASSERT(values.size() == out.size());
  for (std::size_t i = 0; i < values.size(); ++i) out[i] = to_float(values[i]);
}

}  // namespace isthmus::kernels

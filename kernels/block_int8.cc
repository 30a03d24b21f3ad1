#include "kernels/block_int8.h"

#include <algorithm>
#include <cmath>

#include "base/assert.h"

namespace isthmus::kernels {

void int8_encode(std::span<const float> values, std::span<float> scales,
                 std::span<std::int8_t> codes) {
  ISTHMUS_ASSERT(values.size() == codes.size() && scales.size() == int8_blocks(values.size()));
  for (std::size_t block = 0; block < scales.size(); ++block) {
    const std::size_t first = block * kInt8Block;
    const std::size_t end = std::min(first + kInt8Block, values.size());
    float largest = 0;
    for (std::size_t i = first; i < end; ++i) largest = std::max(largest, std::fabs(values[i]));
    const float scale = largest / 127.0F;
    scales[block] = scale;
    for (std::size_t i = first; i < end; ++i)
      codes[i] = scale == 0.0F ? std::int8_t{0}
                               : static_cast<std::int8_t>(std::nearbyint(
                                     std::clamp(values[i] / scale, -127.0F, 127.0F)));
  }
}

void int8_decode(std::span<const std::int8_t> codes, std::span<const float> scales,
                 std::span<float> values) {
  ISTHMUS_ASSERT(values.size() == codes.size() && scales.size() == int8_blocks(values.size()));
  for (std::size_t i = 0; i < codes.size(); ++i)
    values[i] = static_cast<float>(codes[i]) * scales[i / kInt8Block];
}

}  // namespace isthmus::kernels

// The mask of kernels/dropout.h by its definition, one element at a time.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/random.h"
#include "kernels/dropout.h"

namespace isthmus::kernels {

// What is multiplied with element `i` of a row of a sequence.
inline double dropout_factor(const DropoutMask& mask, std::int64_t sequence, std::int64_t row,
                             std::int64_t i, std::int64_t head = 0) {
  const auto u32 = [](std::int64_t x) { return static_cast<std::uint32_t>(x); };
  const auto key = mask.keys.subspan(static_cast<std::size_t>(2 * sequence), 2);
  const auto words = philox4x32({u32(i / 64 * 16 + i % 16), u32(row), mask.stream, u32(head)},
                                {u32(key[0]), u32(key[1])});
  const double threshold = std::floor(static_cast<double>(mask.rate) * 0x1p32);
  if (static_cast<double>(words[static_cast<std::size_t>(i % 64 / 16)]) < threshold) return 0;
  return 1 / (1 - static_cast<double>(mask.rate));
}

}  // namespace isthmus::kernels

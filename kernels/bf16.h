// f32 to bf16 and back. Rounds to nearest even; NaN stays NaN (quiet, sign and upper payload kept);
// a finite value that would round to infinity becomes the largest finite bf16, so finite stays
// finite; infinities stay. Equal bits on every instruction set.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace isthmus::kernels {

// The specification, one value.
constexpr bf16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return {static_cast<std::uint16_t>((bits >> 16) | 0x0040U)};
  if (magnitude == 0x7f800000U) return {static_cast<std::uint16_t>(bits >> 16)};
  const auto rounded = static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
  if ((rounded & 0x7fffU) == 0x7f80U) return {static_cast<std::uint16_t>(rounded - 1)};
  return {rounded};
}

constexpr float to_float(bf16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

// Sizes equal; the two must not overlap.
void float_to_bf16(std::span<const float> values, std::span<bf16_t> out);
void bf16_to_float(std::span<const bf16_t> values, std::span<float> out);

}  // namespace isthmus::kernels

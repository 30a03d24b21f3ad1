// Symmetric int8 in blocks of 256: one f32 scale per block, code = nearest even of value / scale.
// Equal bits on every instruction set.
//
//   scale = max |x| / 127, and 0 for a block of zeros (or so small that this rounds to 0)
//   code  = 0 where scale is 0, else value / scale, rounded to nearest even, clamped to ±127
//   value = float(code) * scale
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/outer_step.h"

namespace isthmus::kernels {

constexpr std::size_t kInt8Block = 256;

constexpr std::size_t int8_blocks(std::size_t values) {
  return (values + kInt8Block - 1) / kInt8Block;
}

// values: finite, and below 2^127 in magnitude (so that decoding stays finite); the last block may
// be short. scales has int8_blocks(values.size()) entries, codes as many as values.
void int8_encode(std::span<const float> values, std::span<float> scales,
                 std::span<std::int8_t> codes);

// Scales may come from a peer: whether one is negative, non-finite or makes a value non-finite is
// for the caller to check (all_finite on the values). A code of -128 decodes as such.
void int8_decode(std::span<const std::int8_t> codes, std::span<const float> scales,
                 std::span<float> values);

// What a site codes of an outer step (compress/error_feedback.h), in one pass over memory:
//   quantity = (agreed − contributed) + feedback      feedback may be {}
//   residual = quantity − decoded                     may be the memory of feedback; past caches
// with the scales and codes of the quantity as above. Where a value of a block is not finite its
// scale is infinite, and the rest of the block undefined.
void int8_encode_change(std::span<const float> agreed, std::span<const float> contributed,
                        std::span<const float> feedback, std::span<float> scales,
                        std::span<std::int8_t> codes, std::span<float> residual);

// An outer step of coded parts, in one pass over memory: delta = Σ weight · value, in the order of
// the parts (kInt8PartsMax at most), each product and each sum rounded as scale and accumulate of
// outer_arithmetic.h do.
struct Int8Part {
  std::span<const std::int8_t> codes;
  std::span<const std::byte> scales;  // f32, at any address
  float weight = 0;
};
constexpr std::size_t kInt8PartsMax = 16;
void int8_outer_step(std::span<const Int8Part> parts, const OuterStep& step);

}  // namespace isthmus::kernels

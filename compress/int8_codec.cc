#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/assert.h"
#include "compress/codecs.h"
#include "kernels/block_int8.h"
#include "kernels/outer_arithmetic.h"

namespace isthmus::compress {
namespace {

using kernels::int8_blocks;
using kernels::kInt8Block;
static_assert(kFrameAlignment % kInt8Block == 0, "a frame starts with a whole block");

// Blocks converted at a time: their scales pass through here, because those on the wire lie at any
// address, and their values stay in the first-level cache between check and conversion.
constexpr std::size_t kBatchBlocks = 16;
using Scales = std::array<float, kBatchBlocks>;

// Below it every one of the 256 codes gives an allowed value, so nobody need look at the values.
constexpr float kScaleEnd = kLargestValue / 128;

bool allowed(float scale) {
  return scale >= 0 && scale < kScaleEnd && !std::signbit(scale);  // false for NaN
}

class Int8Codec final : public Codec {
  CodecId id() const override { return CodecId::int8; }

  std::size_t encoded_bytes_max(std::size_t value_count) const override {
    return sizeof(float) * int8_blocks(value_count) + value_count;
  }

  Result<void> encode_part(std::span<const float> values, std::size_t first,
                           std::size_t frame_values, std::span<std::byte> frame) const override {
    return encode_batches(
        values.size(), first, frame_values, frame,
        [&](std::size_t at, std::span<float> scales, std::span<std::int8_t> codes) -> Result<void> {
          const auto part = values.subspan(at, codes.size());
          if (!kernels::all_finite(part)) return not_finite();
          kernels::int8_encode(part, scales, codes);
          return {};
        });
  }

  Result<void> encode_change(const Change& change, std::size_t first, std::size_t frame_values,
                             std::span<std::byte> frame, std::span<float> residual) const override {
    return encode_batches(
        residual.size(), first, frame_values, frame,
        [&](std::size_t at, std::span<float> scales, std::span<std::int8_t> codes) -> Result<void> {
          const auto part = [&](auto values) { return values.subspan(at, codes.size()); };
          kernels::int8_encode_change(
              part(change.agreed), part(change.contributed),
              change.feedback.empty() ? change.feedback : part(change.feedback), scales, codes,
              part(residual));
          if (std::any_of(scales.begin(), scales.end(), [](float s) { return std::isinf(s); }))
            return not_finite();
          return {};
        });
  }

  Result<void> decode_part(std::span<const std::byte> frame, std::size_t frame_values,
                           std::size_t first, std::span<float> values) const override {
    ISTHMUS_TRY(const auto part, part_of(frame, frame_values, first, values.size()));
    Scales batch;
    for (std::size_t at = 0; at < values.size(); at += kBatchBlocks * kInt8Block) {
      const auto size = std::min(values.size() - at, kBatchBlocks * kInt8Block);
      const auto scales = std::span(batch).first(int8_blocks(size));
      std::memcpy(scales.data(), part.scales.data() + at / kInt8Block * sizeof(float),
                  scales.size_bytes());
      kernels::int8_decode(part.codes.subspan(at, size), scales, values.subspan(at, size));
    }
    return {};
  }
  Result<void> decode_step(std::span<const WeightedFrame> frames, std::size_t frame_values,
                           std::size_t first, const kernels::OuterStep& step) const override {
    if (frames.size() > kernels::kInt8PartsMax)
      return Codec::decode_step(frames, frame_values, first, step);
    std::array<kernels::Int8Part, kernels::kInt8PartsMax> parts;
    for (std::size_t i = 0; i < frames.size(); ++i) {
      ISTHMUS_TRY(parts[i], part_of(frames[i].frame, frame_values, first, step.agreed.size()));
      parts[i].weight = frames[i].weight;
    }
    kernels::int8_outer_step(std::span(parts).first(frames.size()), step);
    return {};
  }

  // The scales say it.
  Result<void> check(std::span<const std::byte> frame, std::size_t frame_values) const override {
    ISTHMUS_CHECK(check_size(frame, frame_values));
    return check_scales(frame.first(int8_blocks(frame_values) * sizeof(float)));
  }

 private:
  // Calls encode(at, scales, codes) for each batch of `count` values, the first of which is value
  // `first` of the frame.
  template <class Encode>
  Result<void> encode_batches(std::size_t count, std::size_t first, std::size_t frame_values,
                              std::span<std::byte> frame, const Encode& encode) const {
    ISTHMUS_ASSERT(frame.size() == encoded_bytes_max(frame_values) && first % kInt8Block == 0 &&
                   first + count <= frame_values);
    auto* scales_out = frame.data() + first / kInt8Block * sizeof(float);
    auto* codes =
        reinterpret_cast<std::int8_t*>(frame.data() + frame.size() - frame_values + first);
    for (std::size_t at = 0; at < count; at += kBatchBlocks * kInt8Block) {
      const auto size = std::min(count - at, kBatchBlocks * kInt8Block);
      Scales batch;
      const auto scales = std::span(batch).first(int8_blocks(size));
      ISTHMUS_CHECK(encode(at, scales, std::span(codes + at, size)));
      if (!std::all_of(scales.begin(), scales.end(), allowed))
        return Error{ErrorCode::non_finite, "int8 encode: a value of 127 * 2^57 or more"};
      std::memcpy(scales_out, scales.data(), scales.size_bytes());
      scales_out += scales.size_bytes();
    }
    return {};
  }

  // Of a frame, `count` values from `first` on, whose scales are as they must be.
  Result<kernels::Int8Part> part_of(std::span<const std::byte> frame, std::size_t frame_values,
                                    std::size_t first, std::size_t count) const {
    ISTHMUS_CHECK(check_size(frame, frame_values));
    ISTHMUS_ASSERT(first % kInt8Block == 0 && first + count <= frame_values);
    const auto scales =
        frame.subspan(first / kInt8Block * sizeof(float), int8_blocks(count) * sizeof(float));
    ISTHMUS_CHECK(check_scales(scales));
    const auto* codes =
        reinterpret_cast<const std::int8_t*>(frame.data() + frame.size() - frame_values + first);
    return kernels::Int8Part{.codes = {codes, count}, .scales = scales};
  }

  static Result<void> check_scales(std::span<const std::byte> scales) {
    for (std::size_t at = 0; at < scales.size(); at += sizeof(float)) {
      float scale = 0;
      std::memcpy(&scale, scales.data() + at, sizeof scale);
      if (!allowed(scale)) return bad_scale();
    }
    return {};
  }

  static Error not_finite() {
    return {ErrorCode::non_finite, "int8 encode: a value is not finite"};
  }
  static Error bad_scale() {
    return {ErrorCode::bad_frame, "int8 decode: a scale is negative, not finite or too large"};
  }
  Result<void> check_size(std::span<const std::byte> frame, std::size_t values) const {
    if (frame.size() == encoded_bytes_max(values)) return {};
    return Error{ErrorCode::bad_frame,
                 fmt::format("int8 decode: {} bytes for {} values", frame.size(), values)};
  }
};

}  // namespace

std::unique_ptr<Codec> make_int8_codec() { return std::make_unique<Int8Codec>(); }

}  // namespace isthmus::compress

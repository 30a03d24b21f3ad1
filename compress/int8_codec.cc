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

// Below it every one of the 256 codes gives a finite value, so nobody need look at the values.
constexpr float kScaleEnd = 0x1p120F;

bool allowed(float scale) {
  return scale >= 0 && scale < kScaleEnd && !std::signbit(scale);  // false for NaN
}

class Int8Codec final : public Codec {
  CodecId id() const override { return CodecId::int8; }

  std::size_t encoded_bytes_max(std::size_t value_count) const override {
    return sizeof(float) * int8_blocks(value_count) + value_count;
  }

  Result<std::size_t> encode(std::span<const float> values,
                             std::span<std::byte> out) const override {
    const std::size_t bytes = encoded_bytes_max(values.size());
    ISTHMUS_ASSERT(out.size() >= bytes);
    auto* scales_out = out.data();
    auto* codes = reinterpret_cast<std::int8_t*>(out.data() + bytes - values.size());
    while (!values.empty()) {
      const auto part = values.first(std::min(values.size(), kBatchBlocks * kInt8Block));
      if (!kernels::all_finite(part))
        return Error{ErrorCode::non_finite, "int8 encode: a value is not finite"};
      Scales batch;
      const auto scales = std::span(batch).first(int8_blocks(part.size()));
      kernels::int8_encode(part, scales, {codes, part.size()});
      if (!std::all_of(scales.begin(), scales.end(), allowed))
        return Error{ErrorCode::non_finite, "int8 encode: a value of 127 * 2^120 or more"};
      std::memcpy(scales_out, scales.data(), scales.size_bytes());
      scales_out += scales.size_bytes();
      codes += part.size();
      values = values.subspan(part.size());
    }
    return bytes;
  }

  Result<void> decode(std::span<const std::byte> in, std::span<float> values) const override {
    if (in.size() != encoded_bytes_max(values.size()))
      return Error{ErrorCode::bad_frame,
                   fmt::format("int8 decode: {} bytes for {} values", in.size(), values.size())};
    const auto* scales_in = in.data();
    const auto* codes = reinterpret_cast<const std::int8_t*>(in.data() + in.size() - values.size());
    while (!values.empty()) {
      const auto part = values.first(std::min(values.size(), kBatchBlocks * kInt8Block));
      Scales batch;
      const auto scales = std::span(batch).first(int8_blocks(part.size()));
      std::memcpy(scales.data(), scales_in, scales.size_bytes());
      if (!std::all_of(scales.begin(), scales.end(), allowed))
        return Error{ErrorCode::bad_frame,
                     "int8 decode: a scale is negative, not finite or too large"};
      kernels::int8_decode({codes, part.size()}, scales, part);
      scales_in += scales.size_bytes();
      codes += part.size();
      values = values.subspan(part.size());
    }
    return {};
  }
};

}  // namespace

std::unique_ptr<Codec> make_int8_codec() { return std::make_unique<Int8Codec>(); }

}  // namespace isthmus::compress

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/assert.h"
#include "base/dtype.h"
#include "compress/codecs.h"
#include "kernels/bf16.h"
#include "kernels/outer_arithmetic.h"

namespace isthmus::compress {
namespace {

// Values converted at a time, in the first-level cache.
constexpr std::size_t kBatch = 2048;
using Batch = std::array<bf16_t, kBatch>;

// The whole batch, also when only a part of it counts: a loop of known length is vectorised.
void split_planes(const Batch& batch, std::array<std::uint8_t, kBatch>& high,
                  std::array<std::uint8_t, kBatch>& low) {
  for (std::size_t i = 0; i < kBatch; ++i) {
    high[i] = static_cast<std::uint8_t>(batch[i].bits >> 8);
    low[i] = static_cast<std::uint8_t>(batch[i].bits);
  }
}

void join_planes(const std::array<std::uint8_t, kBatch>& high,
                 const std::array<std::uint8_t, kBatch>& low, Batch& batch) {
  for (std::size_t i = 0; i < kBatch; ++i)
    batch[i].bits = static_cast<std::uint16_t>((high[i] << 8) | low[i]);
}

class Bf16Codec final : public Codec {
  CodecId id() const override { return CodecId::bf16; }

  std::size_t encoded_bytes_max(std::size_t value_count) const override { return 2 * value_count; }

  Result<void> encode_part(std::span<const float> values, std::size_t first,
                           std::size_t frame_values, std::span<std::byte> frame) const override {
    const std::size_t count = values.size();
    ISTHMUS_ASSERT(frame.size() == 2 * frame_values && first + count <= frame_values);
    auto* const out = frame.data() + first;
    Batch batch{};
    std::array<std::uint8_t, kBatch> high, low;
    for (std::size_t at = 0; at < count; at += kBatch) {
      const std::size_t n = std::min(kBatch, count - at);
      const auto part = values.subspan(at, n);
      if (!kernels::all_within(part, kLargestValue))
        return Error{ErrorCode::non_finite, "bf16 encode: a value is not finite, or above 2^64"};
      kernels::float_to_bf16(part, std::span(batch).first(n));  // rounds none above 2^64
      split_planes(batch, high, low);
      std::memcpy(out + at, high.data(), n);
      std::memcpy(out + frame_values + at, low.data(), n);
    }
    return {};
  }

  Result<void> decode_part(std::span<const std::byte> frame, std::size_t frame_values,
                           std::size_t first, std::span<float> values) const override {
    const std::size_t count = values.size();
    if (frame.size() != 2 * frame_values)
      return Error{ErrorCode::bad_frame,
                   fmt::format("bf16 decode: {} bytes for {} values", frame.size(), frame_values)};
    ISTHMUS_ASSERT(first + count <= frame_values);
    const auto* const in = frame.data() + first;
    Batch batch;
    std::array<std::uint8_t, kBatch> high{}, low{};
    for (std::size_t at = 0; at < count; at += kBatch) {
      const std::size_t n = std::min(kBatch, count - at);
      std::memcpy(high.data(), in + at, n);
      std::memcpy(low.data(), in + frame_values + at, n);
      join_planes(high, low, batch);
      kernels::bf16_to_float(std::span(batch).first(n), values.subspan(at, n));
      if (!kernels::all_within(values.subspan(at, n), kLargestValue))
        return Error{ErrorCode::bad_frame, "bf16 decode: a value is not finite, or above 2^64"};
    }
    return {};
  }
};

}  // namespace

std::unique_ptr<Codec> make_bf16_codec() { return std::make_unique<Bf16Codec>(); }

}  // namespace isthmus::compress

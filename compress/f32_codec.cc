#include <fmt/format.h>

#include <cstring>

#include "base/assert.h"
#include "compress/codecs.h"
#include "kernels/outer_arithmetic.h"

namespace isthmus::compress {
namespace {

class F32Codec final : public Codec {
  CodecId id() const override { return CodecId::none; }

  std::size_t encoded_bytes_max(std::size_t value_count) const override { return 4 * value_count; }

  Result<void> encode_part(std::span<const float> values, std::size_t first,
                           std::size_t frame_values, std::span<std::byte> frame) const override {
    ISTHMUS_ASSERT(frame.size() == 4 * frame_values && first + values.size() <= frame_values);
    if (!kernels::all_within(values, kLargestValue))
      return Error{ErrorCode::non_finite, "f32 encode: a value is not finite, or above 2^64"};
    if (!values.empty()) std::memcpy(frame.data() + 4 * first, values.data(), values.size_bytes());
    return {};
  }

  Result<void> decode_part(std::span<const std::byte> frame, std::size_t frame_values,
                           std::size_t first, std::span<float> values) const override {
    if (frame.size() != 4 * frame_values)
      return Error{ErrorCode::bad_frame,
                   fmt::format("f32 decode: {} bytes for {} values", frame.size(), frame_values)};
    ISTHMUS_ASSERT(first + values.size() <= frame_values);
    if (!values.empty()) std::memcpy(values.data(), frame.data() + 4 * first, values.size_bytes());
    if (!kernels::all_within(values, kLargestValue))
      return Error{ErrorCode::bad_frame, "f32 decode: a value is not finite, or above 2^64"};
    return {};
  }
};

}  // namespace

std::unique_ptr<Codec> make_f32_codec() { return std::make_unique<F32Codec>(); }

}  // namespace isthmus::compress

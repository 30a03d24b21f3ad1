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

  Result<std::size_t> encode(std::span<const float> values,
                             std::span<std::byte> out) const override {
    ISTHMUS_ASSERT(out.size() >= values.size_bytes());
    if (!kernels::all_finite(values))
      return Error{ErrorCode::non_finite, "f32 encode: a value is not finite"};
    if (!values.empty()) std::memcpy(out.data(), values.data(), values.size_bytes());
    return values.size_bytes();
  }

  Result<void> decode(std::span<const std::byte> in, std::span<float> values) const override {
    if (in.size() != values.size_bytes())
      return Error{ErrorCode::bad_frame,
                   fmt::format("f32 decode: {} bytes for {} values", in.size(), values.size())};
    if (!values.empty()) std::memcpy(values.data(), in.data(), in.size());
    if (!kernels::all_finite(values))
      return Error{ErrorCode::bad_frame, "f32 decode: a value is not finite"};
    return {};
  }
};

}  // namespace

std::unique_ptr<Codec> make_f32_codec() { return std::make_unique<F32Codec>(); }

}  // namespace isthmus::compress

#include "compress/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/assert.h"
#include "compress/codecs.h"
#include "compress/error_feedback.h"
#include "kernels/outer_arithmetic.h"
#include "kernels/stream_copy.h"

namespace isthmus::compress {

Result<std::size_t> Codec::encode(std::span<const float> values, std::span<std::byte> out) const {
  const auto bytes = encoded_bytes_max(values.size());
  ISTHMUS_ASSERT(out.size() >= bytes);
  ISTHMUS_CHECK(encode_part(values, 0, values.size(), out.first(bytes)));
  return bytes;
}

Result<void> Codec::decode(std::span<const std::byte> in, std::span<float> values) const {
  return decode_part(in, values.size(), 0, values);
}

Result<void> Codec::encode_change(const Change& change, std::size_t first, std::size_t frame_values,
                                  std::span<std::byte> frame, std::span<float> residual) const {
  ISTHMUS_ASSERT(residual.size() <= kTileElements);
  std::array<float, kTileElements> quantities, decodeds;
  const auto quantity = std::span(quantities).first(residual.size());
  const auto decoded = std::span(decodeds).first(residual.size());
  form_pseudo_gradient(change.agreed, change.contributed, quantity);
  if (!change.feedback.empty()) form_quantity(quantity, change.feedback, quantity);
  ISTHMUS_CHECK(encode_part(quantity, first, frame_values, frame));
  ISTHMUS_CHECK(decode_part(frame, frame_values, first, decoded));
  form_residual(quantity, decoded, decoded);
  kernels::stream_copy(decoded, residual);
  return {};
}

Result<void> Codec::decode_step(std::span<const WeightedFrame> frames, std::size_t frame_values,
                                std::size_t first, const kernels::OuterStep& step) const {
  const auto count = step.agreed.size();
  ISTHMUS_ASSERT(!frames.empty() && count <= kTileElements);
  std::array<float, kTileElements> deltas, values;
  const auto delta = std::span(deltas).first(count);
  const auto value = std::span(values).first(count);
  ISTHMUS_CHECK(decode_part(frames[0].frame, frame_values, first, delta));
  kernels::scale(frames[0].weight, delta, delta);
  for (const auto& [frame, weight] : frames.subspan(1)) {
    ISTHMUS_CHECK(decode_part(frame, frame_values, first, value));
    kernels::accumulate(weight, value, delta);
  }
  kernels::outer_step(delta, step);
  return {};
}

Result<void> Codec::check(std::span<const std::byte> frame, std::size_t frame_values) const {
  std::array<float, kTileElements> tile;
  for (std::size_t first = 0; first < frame_values || first == 0; first += kTileElements)
    ISTHMUS_CHECK(
        decode_part(frame, frame_values, first,
                    std::span(tile).first(std::min(kTileElements, frame_values - first))));
  return {};
}

std::string_view to_string(CodecId id) {
  switch (id) {
    case CodecId::none:
      return "none";
    case CodecId::bf16:
      return "bf16";
    case CodecId::int8:
      return "int8";
  }
  ISTHMUS_ASSERT(!"a codec without a name");
}

Result<CodecId> parse_codec(std::string_view name) {
  for (const auto id : {CodecId::none, CodecId::bf16, CodecId::int8})
    if (name == to_string(id)) return id;
  return Error{ErrorCode::invalid_argument,
               fmt::format("no codec is called \"{}\": there are none, bf16 and int8", name)};
}

Result<CodecId> codec_of_wire(std::uint8_t id) {
  if (id > static_cast<std::uint8_t>(CodecId::int8))
    return Error{ErrorCode::unsupported,
                 fmt::format("codec number {} is not known to this version", id)};
  return static_cast<CodecId>(id);
}

std::unique_ptr<Codec> make_codec(CodecId id) {
  switch (id) {
    case CodecId::none:
      return make_f32_codec();
    case CodecId::bf16:
      return make_bf16_codec();
    case CodecId::int8:
      return make_int8_codec();
  }
  ISTHMUS_ASSERT(!"a codec without an implementation");
}

}  // namespace isthmus::compress

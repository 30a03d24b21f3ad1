// A codec turns a frame, a slice of a pseudo-gradient, into bytes for the wire, and back. Codecs
// keep no state between calls: error feedback belongs to the outer step
// (compress/error_feedback.h).
//
// A frame is a run of consecutive elements of one tensor that starts at a multiple of
// kFrameAlignment elements from the tensor's start. So a site may cut its tensors as it likes and
// still gets the blocks, and the bits, of every other site. Formats: compress/FORMATS.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/result.h"
#include "kernels/outer_step.h"

namespace isthmus::compress {

inline constexpr std::size_t kFrameAlignment = 256;  // elements

// No value on the wire is larger in magnitude. With it weighted sums, momentum and states stay far
// from where floats end, for as many steps as anybody takes: finite values near the end would add
// up to an infinite state. No training's change of a parameter comes near it.
inline constexpr float kLargestValue = 0x1p64F;

// Values are the wire's; never reused.
enum class CodecId : std::uint8_t { none = 0, bf16 = 1, int8 = 2 };

std::string_view to_string(CodecId id);  // "none", "bf16", "int8": what a site's file says

// Fails with invalid_argument and names what there is.
Result<CodecId> parse_codec(std::string_view name);
// From a peer's message. Fails with unsupported.
Result<CodecId> codec_of_wire(std::uint8_t id);

// Any thread.
class Codec {
 public:
  virtual ~Codec() = default;
  virtual CodecId id() const = 0;

  // Bytes needed at most for `value_count` values, so that buffers are allocated once, before the
  // first outer step. The codecs of today need exactly as many.
  virtual std::size_t encoded_bytes_max(std::size_t value_count) const = 0;

  // Fills the front of `out`; returns the bytes used. Equal values give equal bytes on every
  // machine. Fails with non_finite, because one NaN would spoil every replica: also for
  // values above kLargestValue, and those that would come back above it.
  Result<std::size_t> encode(std::span<const float> values, std::span<std::byte> out) const;

  // `in` comes from a peer: never assumed well-formed, and needs no alignment. Fails with bad_frame
  // when it has not exactly the bytes of `values.size()` values or one would not be finite, or be
  // above kLargestValue;
  // every machine reaches the same verdict and the same bits. After a failure `values` holds
  // garbage.
  Result<void> decode(std::span<const std::byte> in, std::span<float> values) const;

  // The same for a part of a frame of `frame_values`: the values from `first`, a multiple of
  // kFrameAlignment, on. So that who does more with the values than to code them takes tiles that
  // stay in the first-level cache. All parts of a frame, in any order, are the frame.
  virtual Result<void> encode_part(std::span<const float> values, std::size_t first,
                                   std::size_t frame_values, std::span<std::byte> frame) const = 0;
  virtual Result<void> decode_part(std::span<const std::byte> frame, std::size_t frame_values,
                                   std::size_t first, std::span<float> values) const = 0;
  // What a site contributes of a tile (compress/error_feedback.h), at most kTileElements values:
  //   quantity = (agreed − contributed) + feedback, encoded;  residual = quantity − decoded
  // The residual, which may be the memory of feedback, is written past the caches. Fails as encode;
  // the residual is garbage then.
  struct Change {
    std::span<const float> agreed, contributed;
    std::span<const float> feedback;  // may be {}
  };
  virtual Result<void> encode_change(const Change& change, std::size_t first,
                                     std::size_t frame_values, std::span<std::byte> frame,
                                     std::span<float> residual) const;
  // What an outer step makes of a tile of all contributions, at least one: delta = Σ weight ·
  // value, in their order, and the rule; here, since only so it is one pass over memory. Fails as
  // decode.
  struct WeightedFrame {
    std::span<const std::byte> frame;
    float weight = 0;
  };
  virtual Result<void> decode_step(std::span<const WeightedFrame> frames, std::size_t frame_values,
                                   std::size_t first, const kernels::OuterStep& step) const;

  // Whether decode would succeed.
  virtual Result<void> check(std::span<const std::byte> frame, std::size_t frame_values) const;
};

// What is worked on at a time: a few of them fit the first-level cache.
inline constexpr std::size_t kTileElements = 2048;
static_assert(kTileElements % kFrameAlignment == 0);

std::unique_ptr<Codec> make_codec(CodecId id);

}  // namespace isthmus::compress

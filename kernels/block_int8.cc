#include "kernels/block_int8.h"

#include <hwy/cache_control.h>

#include <array>
#include <cstring>

#include "base/assert.h"

#ifndef ISTHMUS_KERNELS_INT8_PART_POINTERS_
#define ISTHMUS_KERNELS_INT8_PART_POINTERS_
namespace isthmus::kernels {
// An Int8Part without templates of std (vectors-inl.h).
struct Int8PartPointers {
  const std::int8_t* codes;
  const std::byte* scales;
  float weight;
};
}  // namespace isthmus::kernels
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/block_int8.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/outer_step-inl.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

// Highest magnitude: the same whatever the order, so lanes do not matter.
HWY_INLINE float largest_magnitude(const float* values, std::size_t count) {
  const FloatTag d;
  const OneFloatTag one;
  const std::size_t lanes = hn::Lanes(d);
  auto wide = hn::Zero(d);
  auto narrow = hn::Zero(one);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) wide = hn::Max(wide, hn::Abs(hn::LoadU(d, values + i)));
  for (; i < count; ++i) narrow = hn::Max(narrow, hn::Abs(hn::LoadU(one, values + i)));
  const float a = hn::GetLane(hn::MaxOfLanes(d, wide));
  const float b = hn::GetLane(narrow);
  return a > b ? a : b;
}

// value / scale, rounded to nearest even and clamped to ±127, plus kMagic.
constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23
template <class D>
HWY_INLINE hn::Vec<D> code_and_magic(D d, hn::Vec<D> value, hn::Vec<D> scale) {
  const auto quotient = hn::Div(value, scale);
  const auto clamped = hn::Min(hn::Max(quotient, hn::Set(d, -127.0F)), hn::Set(d, 127.0F));
  // A sum of this size has no fraction bits: it rounds to nearest even by itself. And its bits are
  // those of kMagic plus the code.
  return hn::Add(clamped, hn::Set(d, kMagic));
}

template <class D>
HWY_INLINE void store_code(D d, hn::Vec<D> code_and_magic, std::int8_t* out) {
  const hn::RebindToSigned<D> i32;
  const hn::Rebind<std::int8_t, D> i8;
  const auto magic = hn::BitCast(i32, hn::Set(d, kMagic));
  hn::StoreU(hn::DemoteTo(i8, hn::Sub(hn::BitCast(i32, code_and_magic), magic)), i8, out);
}

void encode_blocks(const float* values, std::size_t count, float* scales, std::int8_t* codes) {
  for (std::size_t first = 0, block = 0; first < count; first += kInt8Block, ++block) {
    const std::size_t size = count - first < kInt8Block ? count - first : kInt8Block;
    const float scale = largest_magnitude(values + first, size) / 127.0F;
    scales[block] = scale;
    std::int8_t* out = codes + first;
    if (scale == 0.0F) {
      for (std::size_t i = 0; i < size; ++i) out[i] = 0;
      continue;
    }
    const float* in = values + first;
    for_lanes(size, [=](auto d, std::size_t i) {
      store_code(d, code_and_magic(d, hn::LoadU(d, in + i), hn::Set(d, scale)), out + i);
    });
  }
}

template <class D>
HWY_INLINE hn::Vec<D> quantity_of(D d, const float* agreed, const float* contributed,
                                  const float* feedback, std::size_t i) {
  const auto change = hn::Sub(hn::LoadU(d, agreed + i), hn::LoadU(d, contributed + i));
  return feedback == nullptr ? change : hn::Add(change, hn::LoadU(d, feedback + i));
}

// The bits of magnitudes are in their order, with infinity and NaN above all.
constexpr std::uint32_t kInfinityBits = 0x7F800000;
template <class D>
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> magnitude_bits(D /*d*/, hn::Vec<D> value) {
  const hn::RebindToSigned<D> i32;
  return hn::BitCast(i32, hn::Abs(value));
}

// Infinite where a value is not finite.
HWY_INLINE float scale_of(std::uint32_t largest_bits) {
  const std::uint32_t kept = largest_bits < kInfinityBits ? largest_bits : kInfinityBits;
  float magnitude = 0;
  std::memcpy(&magnitude, &kept, sizeof magnitude);
  return magnitude / 127.0F;
}

// The code of a quantity, and what it leaves. Where the scale is 0 so is the code.
template <bool kZeroScale, class D>
HWY_INLINE void code_quantity(D d, hn::Vec<D> quantity, hn::Vec<D> scale, std::int8_t* code_out,
                              float* residual) {
  const auto magic = hn::Set(d, kMagic);
  const auto sum = kZeroScale ? magic : code_and_magic(d, quantity, scale);
  store_code(d, sum, code_out);
  store_past_caches(hn::Sub(quantity, hn::Mul(hn::Sub(sum, magic), scale)), d, residual);
}

// A whole block, whose quantities stay in registers where there are enough: so the next one is read
// while this one is coded. Returns its scale.
HWY_INLINE float encode_change_block(const float* agreed, const float* contributed,
                                     const float* feedback, std::int8_t* codes, float* residual) {
  const FloatTag d;
  constexpr std::size_t kLanes = hn::MaxLanes(FloatTag());
  constexpr std::size_t kVectors = kInt8Block / kLanes;
  const hn::RebindToSigned<FloatTag> i32;
  hn::Vec<FloatTag> quantities[kVectors];
  auto largest = hn::Zero(i32);
  ISTHMUS_UNROLL
  for (std::size_t v = 0; v < kVectors; ++v) {
    quantities[v] = quantity_of(d, agreed, contributed, feedback, v * kLanes);
    largest = hn::Max(largest, magnitude_bits(d, quantities[v]));
  }
  const auto bits = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(i32, largest)));
  const float scale = scale_of(bits);
  if (bits >= kInfinityBits) return scale;
  const auto wide_scale = hn::Set(d, scale);
  if (scale == 0.0F) {
    ISTHMUS_UNROLL
    for (std::size_t v = 0; v < kVectors; ++v)
      code_quantity<true>(d, quantities[v], wide_scale, codes + v * kLanes, residual + v * kLanes);
    return scale;
  }
  ISTHMUS_UNROLL
  for (std::size_t v = 0; v < kVectors; ++v)
    code_quantity<false>(d, quantities[v], wide_scale, codes + v * kLanes, residual + v * kLanes);
  return scale;
}

// A last block that is short, one lane at a time.
HWY_INLINE float encode_change_rest(const float* agreed, const float* contributed,
                                    const float* feedback, std::size_t count, std::int8_t* codes,
                                    float* residual) {
  const OneFloatTag one;
  const hn::RebindToSigned<OneFloatTag> i32;
  HWY_ALIGN float quantities[kInt8Block];
  auto largest = hn::Zero(i32);
  for (std::size_t i = 0; i < count; ++i) {
    const auto quantity = quantity_of(one, agreed, contributed, feedback, i);
    hn::StoreU(quantity, one, quantities + i);
    largest = hn::Max(largest, magnitude_bits(one, quantity));
  }
  const auto bits = static_cast<std::uint32_t>(hn::GetLane(largest));
  const float scale = scale_of(bits);
  if (bits >= kInfinityBits) return scale;
  const auto wide_scale = hn::Set(one, scale);
  for (std::size_t i = 0; i < count; ++i) {
    const auto quantity = hn::LoadU(one, quantities + i);
    if (scale == 0.0F)
      code_quantity<true>(one, quantity, wide_scale, codes + i, residual + i);
    else
      code_quantity<false>(one, quantity, wide_scale, codes + i, residual + i);
  }
  return scale;
}

void encode_change_blocks(const float* agreed, const float* contributed, const float* feedback,
                          std::size_t count, float* scales, std::int8_t* codes, float* residual) {
  std::size_t first = 0;
  for (; first + kInt8Block <= count; first += kInt8Block)
    *scales++ = encode_change_block(agreed + first, contributed + first,
                                    feedback == nullptr ? nullptr : feedback + first, codes + first,
                                    residual + first);
  if (first < count)
    *scales = encode_change_rest(agreed + first, contributed + first,
                                 feedback == nullptr ? nullptr : feedback + first, count - first,
                                 codes + first, residual + first);
  hwy::FlushStream();  // or a later write of this thread could be seen before these
}

template <class D>
HWY_INLINE hn::Vec<D> decoded(D d, const std::int8_t* codes, float scale) {
  const hn::RebindToSigned<D> i32;
  const hn::Rebind<std::int8_t, D> i8;
  return hn::Mul(hn::ConvertTo(d, hn::PromoteTo(i32, hn::LoadU(i8, codes))), hn::Set(d, scale));
}

void decode_blocks(const std::int8_t* codes, const float* scales, std::size_t count,
                   float* values) {
  for (std::size_t first = 0, block = 0; first < count; first += kInt8Block, ++block) {
    const std::size_t size = count - first < kInt8Block ? count - first : kInt8Block;
    const float scale = scales[block];
    for_lanes(size, [=](auto d, std::size_t i) {
      hn::StoreU(decoded(d, codes + first + i, scale), d, values + first + i);
    });
  }
}

HWY_INLINE float scale_at(const Int8PartPointers& part, std::size_t element) {
  float scale = 0;
  std::memcpy(&scale, part.scales + element / kInt8Block * sizeof scale, sizeof scale);
  return scale;
}

// One term of the delta, of the vector at `element`.
template <class D>
HWY_INLINE hn::Vec<D> weighted(D d, const Int8PartPointers& part, std::size_t element) {
  return hn::Mul(hn::Set(d, part.weight),
                 decoded(d, part.codes + element, scale_at(part, element)));
}

void int8_step_blocks(const Int8PartPointers* parts, std::size_t part_count, std::size_t count,
                      const OuterStepPointers& step) {
  for_lanes(count, [&](auto d, std::size_t i) {
    auto delta = weighted(d, parts[0], i);
    for (std::size_t p = 1; p < part_count; ++p) delta = hn::Add(delta, weighted(d, parts[p], i));
    outer_step_of(d, step, i, delta);
  });
  hwy::FlushStream();
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(encode_blocks);
HWY_EXPORT(decode_blocks);
HWY_EXPORT(encode_change_blocks);
HWY_EXPORT(int8_step_blocks);

void int8_encode(std::span<const float> values, std::span<float> scales,
                 std::span<std::int8_t> codes) {
  ISTHMUS_ASSERT(values.size() == codes.size() && scales.size() == int8_blocks(values.size()));
  HWY_DYNAMIC_DISPATCH(encode_blocks)(values.data(), values.size(), scales.data(), codes.data());
}

void int8_decode(std::span<const std::int8_t> codes, std::span<const float> scales,
                 std::span<float> values) {
  ISTHMUS_ASSERT(values.size() == codes.size() && scales.size() == int8_blocks(values.size()));
  HWY_DYNAMIC_DISPATCH(decode_blocks)(codes.data(), scales.data(), codes.size(), values.data());
}

void int8_encode_change(std::span<const float> agreed, std::span<const float> contributed,
                        std::span<const float> feedback, std::span<float> scales,
                        std::span<std::int8_t> codes, std::span<float> residual) {
  ISTHMUS_ASSERT(agreed.size() == codes.size() && contributed.size() == codes.size() &&
                 (feedback.empty() || feedback.size() == codes.size()) &&
                 residual.size() == codes.size() && scales.size() == int8_blocks(codes.size()));
  HWY_DYNAMIC_DISPATCH(encode_change_blocks)
  (agreed.data(), contributed.data(), feedback.empty() ? nullptr : feedback.data(), codes.size(),
   scales.data(), codes.data(), residual.data());
}

void int8_outer_step(std::span<const Int8Part> parts, const OuterStep& step) {
  const auto count = step.agreed.size();
  ISTHMUS_ASSERT(!parts.empty() && parts.size() <= kInt8PartsMax);
  std::array<Int8PartPointers, kInt8PartsMax> pointers;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    ISTHMUS_ASSERT(parts[i].codes.size() == count &&
                   parts[i].scales.size() == int8_blocks(count) * sizeof(float));
    pointers[i] = {parts[i].codes.data(), parts[i].scales.data(), parts[i].weight};
  }
  HWY_DYNAMIC_DISPATCH(int8_step_blocks)
  (pointers.data(), parts.size(), count, pointers_of(step, count));
}

}  // namespace isthmus::kernels
#endif

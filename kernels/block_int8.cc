#include "kernels/block_int8.h"

#include "base/assert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/block_int8.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

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

// value / scale, rounded to nearest even and clamped to ±127.
template <class D>
HWY_INLINE hn::Vec<D> nearest_code(D d, hn::Vec<D> value, hn::Vec<D> scale) {
  const auto quotient = hn::Div(value, scale);
  const auto clamped = hn::Min(hn::Max(quotient, hn::Set(d, -127.0F)), hn::Set(d, 127.0F));
  // Adding 1.5 * 2^23 leaves no fraction bits: the sum itself rounds to nearest even.
  const auto magic = hn::Set(d, 12582912.0F);
  return hn::Sub(hn::Add(clamped, magic), magic);
}

template <class D>
HWY_INLINE void store_code(D /*d*/, hn::Vec<D> code, std::int8_t* out) {
  const hn::RebindToSigned<D> i32;
  const hn::Rebind<std::int8_t, D> i8;
  hn::StoreU(hn::DemoteTo(i8, hn::ConvertTo(i32, code)), i8, out);
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
      store_code(d, nearest_code(d, hn::LoadU(d, in + i), hn::Set(d, scale)), out + i);
    });
  }
}

// Of a block: its quantities, and the bits of the largest magnitude, which are in the order of the
// magnitudes with infinity and NaN above all.
HWY_INLINE std::uint32_t form_quantities(const float* agreed, const float* contributed,
                                         const float* feedback, std::size_t count,
                                         float* quantities) {
  const FloatTag d;
  const OneFloatTag one;
  const auto form = [=](auto tag, std::size_t i) {
    auto quantity = hn::Sub(hn::LoadU(tag, agreed + i), hn::LoadU(tag, contributed + i));
    if (feedback != nullptr) quantity = hn::Add(quantity, hn::LoadU(tag, feedback + i));
    hn::StoreU(quantity, tag, quantities + i);
    const hn::RebindToSigned<decltype(tag)> i32;
    return hn::BitCast(i32, hn::Abs(quantity));
  };
  const hn::RebindToSigned<FloatTag> bits;
  const hn::RebindToSigned<OneFloatTag> one_bits;
  const std::size_t lanes = hn::Lanes(d);
  auto wide = hn::Zero(bits);
  auto narrow = hn::Zero(one_bits);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) wide = hn::Max(wide, form(d, i));
  for (; i < count; ++i) narrow = hn::Max(narrow, form(one, i));
  const auto a = hn::GetLane(hn::MaxOfLanes(bits, wide));
  const auto b = hn::GetLane(narrow);
  return static_cast<std::uint32_t>(a > b ? a : b);
}

void encode_change_blocks(const float* agreed, const float* contributed, const float* feedback,
                          std::size_t count, float* scales, std::int8_t* codes, float* residual) {
  constexpr std::uint32_t kInfinityBits = 0x7F800000;
  HWY_ALIGN float quantities[kInt8Block];
  for (std::size_t first = 0, block = 0; first < count; first += kInt8Block, ++block) {
    const std::size_t size = count - first < kInt8Block ? count - first : kInt8Block;
    const auto largest =
        form_quantities(agreed + first, contributed + first,
                        feedback != nullptr ? feedback + first : nullptr, size, quantities);
    const bool finite = largest < kInfinityBits;
    float magnitude = 0;
    const std::uint32_t kept = finite ? largest : kInfinityBits;
    __builtin_memcpy(&magnitude, &kept, sizeof magnitude);
    const float scale = magnitude / 127.0F;
    scales[block] = scale;
    if (!finite) continue;
    std::int8_t* out = codes + first;
    float* rest = residual + first;
    const float* in = quantities;
    for_lanes(size, [=](auto d, std::size_t i) {
      const auto quantity = hn::LoadU(d, in + i);
      const auto code = scale == 0.0F ? hn::Zero(d) : nearest_code(d, quantity, hn::Set(d, scale));
      store_code(d, code, out + i);
      hn::StoreU(hn::Sub(quantity, hn::Mul(code, hn::Set(d, scale))), d, rest + i);
    });
  }
}

// Calls use(tag, i, value) for each vector of decoded values.
template <class Use>
HWY_INLINE void each_decoded(const std::int8_t* codes, const float* scales, std::size_t count,
                             const Use& use) {
  for (std::size_t first = 0, block = 0; first < count; first += kInt8Block, ++block) {
    const std::size_t size = count - first < kInt8Block ? count - first : kInt8Block;
    const float scale = scales[block];
    const std::int8_t* in = codes + first;
    for_lanes(size, [=](auto d, std::size_t i) {
      const hn::RebindToSigned<decltype(d)> i32;
      const hn::Rebind<std::int8_t, decltype(d)> i8;
      const auto code = hn::ConvertTo(d, hn::PromoteTo(i32, hn::LoadU(i8, in + i)));
      use(d, first + i, hn::Mul(code, hn::Set(d, scale)));
    });
  }
}

void decode_blocks(const std::int8_t* codes, const float* scales, std::size_t count,
                   float* values) {
  each_decoded(codes, scales, count,
               [=](auto d, std::size_t i, auto value) { hn::StoreU(value, d, values + i); });
}

void decode_scaled_blocks(const std::int8_t* codes, const float* scales, std::size_t count,
                          float weight, float* sum) {
  each_decoded(codes, scales, count, [=](auto d, std::size_t i, auto value) {
    hn::StoreU(hn::Mul(hn::Set(d, weight), value), d, sum + i);
  });
}

void decode_accumulated_blocks(const std::int8_t* codes, const float* scales, std::size_t count,
                               float weight, float* sum) {
  each_decoded(codes, scales, count, [=](auto d, std::size_t i, auto value) {
    const auto product = hn::Mul(hn::Set(d, weight), value);
    hn::StoreU(hn::Add(hn::LoadU(d, sum + i), product), d, sum + i);
  });
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(encode_blocks);
HWY_EXPORT(decode_blocks);
HWY_EXPORT(encode_change_blocks);
HWY_EXPORT(decode_scaled_blocks);
HWY_EXPORT(decode_accumulated_blocks);

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

void int8_decode_scaled(std::span<const std::int8_t> codes, std::span<const float> scales,
                        float weight, std::span<float> sum) {
  ISTHMUS_ASSERT(sum.size() == codes.size() && scales.size() == int8_blocks(sum.size()));
  HWY_DYNAMIC_DISPATCH(decode_scaled_blocks)
  (codes.data(), scales.data(), codes.size(), weight, sum.data());
}

void int8_decode_accumulated(std::span<const std::int8_t> codes, std::span<const float> scales,
                             float weight, std::span<float> sum) {
  ISTHMUS_ASSERT(sum.size() == codes.size() && scales.size() == int8_blocks(sum.size()));
  HWY_DYNAMIC_DISPATCH(decode_accumulated_blocks)
  (codes.data(), scales.data(), codes.size(), weight, sum.data());
}

}  // namespace isthmus::kernels
#endif

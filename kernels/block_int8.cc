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
      const hn::RebindToSigned<decltype(d)> i32;
      const hn::Rebind<std::int8_t, decltype(d)> i8;
      const auto quotient = hn::Div(hn::LoadU(d, in + i), hn::Set(d, scale));
      const auto clamped = hn::Min(hn::Max(quotient, hn::Set(d, -127.0F)), hn::Set(d, 127.0F));
      // Adding 1.5 * 2^23 leaves no fraction bits: the sum itself rounds to nearest even.
      const auto magic = hn::Set(d, 12582912.0F);
      const auto nearest = hn::Sub(hn::Add(clamped, magic), magic);
      hn::StoreU(hn::DemoteTo(i8, hn::ConvertTo(i32, nearest)), i8, out + i);
    });
  }
}

void decode_blocks(const std::int8_t* codes, const float* scales, std::size_t count,
                   float* values) {
  for (std::size_t first = 0, block = 0; first < count; first += kInt8Block, ++block) {
    const std::size_t size = count - first < kInt8Block ? count - first : kInt8Block;
    const float scale = scales[block];
    const std::int8_t* in = codes + first;
    float* out = values + first;
    for_lanes(size, [=](auto d, std::size_t i) {
      const hn::RebindToSigned<decltype(d)> i32;
      const hn::Rebind<std::int8_t, decltype(d)> i8;
      const auto code = hn::ConvertTo(d, hn::PromoteTo(i32, hn::LoadU(i8, in + i)));
      hn::StoreU(hn::Mul(code, hn::Set(d, scale)), d, out + i);
    });
  }
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(encode_blocks);
HWY_EXPORT(decode_blocks);

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

}  // namespace isthmus::kernels
#endif

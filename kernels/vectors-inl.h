// Vectors: what every vector kernel shares, compiled once per instruction set (Highway's scheme:
// the file that includes this is compiled again for each target). Private to kernels/.
//
// Inside HWY_NAMESPACE, use raw pointers and no templates of std: a template that is not inlined
// there would be compiled for AVX-512 and could be linked into code that runs everywhere.
#if defined(ISTHMUS_KERNELS_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ISTHMUS_KERNELS_VECTORS_INL_H_
#undef ISTHMUS_KERNELS_VECTORS_INL_H_
#else
#define ISTHMUS_KERNELS_VECTORS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Before each loop over an array of vectors: only when all are unrolled do they stay in registers.
#undef ISTHMUS_UNROLL
#if HWY_COMPILER_CLANG
#define ISTHMUS_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ISTHMUS_UNROLL _Pragma("GCC unroll 32")
#endif

using FloatTag = hn::ScalableTag<float>;
using FourFloatTag = hn::CappedTag<float, 4>;
using OneFloatTag = hn::CappedTag<float, 1>;

// Calls body(tag, i) for i in [0, count) in steps of a vector, then of four lanes, then of one.
template <class Body>
HWY_INLINE void for_lanes(std::size_t count, const Body& body) {
  const FloatTag d;
  const FourFloatTag four;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t four_lanes = hn::Lanes(four);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) body(d, i);
  for (; i + four_lanes <= count; i += four_lanes) body(four, i);
  for (; i < count; ++i) body(OneFloatTag(), i);
}

// For what is read once, soon, and is too much for the first-level cache until then.
HWY_INLINE void prefetch_to_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

// The sum of term(tag, i), a vector, over [0, count). In lanes: for inner training only.
template <class Term>
HWY_INLINE float sum_over(std::size_t count, const Term& term) {
  const FloatTag d;
  const OneFloatTag one;
  const std::size_t lanes = hn::Lanes(d);
  auto even = hn::Zero(d);
  auto odd = hn::Zero(d);
  std::size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    even = hn::Add(even, term(d, i));
    odd = hn::Add(odd, term(d, i + lanes));
  }
  for (; i + lanes <= count; i += lanes) even = hn::Add(even, term(d, i));
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
  for (; i < count; ++i) sum += hn::GetLane(term(one, i));
  return sum;
}

// For what nobody reads soon, where `p` is aligned (a narrower vector than HWY_STREAM_MULTIPLE
// would write beyond its end). Who is done calls hwy::FlushStream().
template <class D>
HWY_INLINE void store_past_caches(hn::Vec<D> value, D d, float* p) {
  constexpr std::size_t kBytes = hn::MaxLanes(D()) * sizeof(float);
  if (kBytes >= HWY_STREAM_MULTIPLE && reinterpret_cast<std::uintptr_t>(p) % kBytes == 0)
    hn::Stream(value, d, p);
  else
    hn::StoreU(value, d, p);
}

template <class D>
HWY_INLINE hn::Vec<D> load_as_float(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> load_as_float(D d, const bf16_t* p) {
  const hn::RebindToUnsigned<D> d32;
  const hn::Rebind<std::uint16_t, D> d16;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

// x · 2^n for whole n from -151 to 151.
template <class D>
HWY_INLINE hn::Vec<D> scale_by_power_of_two(D d, hn::Vec<D> x, hn::Vec<D> n) {
#if HWY_TARGET == HWY_AVX3_DL
  if constexpr (sizeof(x.raw) == 64) return hn::Vec<D>{_mm512_scalef_ps(x.raw, n.raw)};
#endif
  // By a half of n twice, as 2^-150 is no float.
  const hn::RebindToSigned<D> i32;
  const auto whole = hn::ConvertTo(i32, n);
  const auto half = hn::ShiftRight<1>(whole);
  const auto power = [=](auto exponent) {
    return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(exponent, hn::Set(i32, 127))));
  };
  return hn::Mul(hn::Mul(x, power(half)), power(hn::Sub(whole, half)));
}

// exp(x), for x up to 104: 2^n · exp(r), |r| <= ln 2 / 2, by the polynomial of Cephes' expf;
// relative error below 2e-7; 0 for very small x, NaN for NaN.
template <class D>
HWY_INLINE hn::Vec<D> exponential(D d, hn::Vec<D> x) {
  const auto least = hn::Set(d, -104.0F);
  // In this order Max makes a number of NaN, which n must be; r stays NaN.
  const auto n = hn::Round(hn::Mul(hn::Max(x, least), hn::Set(d, 1.44269504F)));
  x = hn::IfThenElse(hn::Lt(x, least), least, x);
  auto r = hn::NegMulAdd(n, hn::Set(d, 0.693359375F), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4F), r);
  auto p = hn::Set(d, 1.9875691500e-4F);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3F));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3F));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1F));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1F));
  p = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), hn::Set(d, 1.0F));
  return scale_by_power_of_two(d, p, n);
}

// What store_float does where a magnitude is so large that it needs care.
template <class I>
HWY_NOINLINE hn::Vec<I> round_special(I i32, hn::Vec<I> bits) {
  const auto magnitude = hn::And(bits, hn::Set(i32, 0x7fffffff));
  const auto sign = hn::AndNot(hn::Set(i32, 0x7fffffff), bits);
  // The largest magnitude that rounds to a finite value; what lies above it saturates.
  const auto finite = hn::Min(magnitude, hn::Set(i32, 0x7f7f7fff));
  const auto odd = hn::And(hn::ShiftRight<16>(finite), hn::Set(i32, 1));
  const auto rounded = hn::Add(finite, hn::Add(odd, hn::Set(i32, 0x7fff)));
  const auto infinity = hn::Set(i32, 0x7f800000);
  const auto quiet_nan = hn::Or(magnitude, hn::Set(i32, 0x00400000));
  auto chosen = hn::IfThenElse(hn::Lt(magnitude, infinity), rounded, magnitude);
  chosen = hn::IfThenElse(hn::Gt(magnitude, infinity), quiet_nan, chosen);
  return hn::Or(chosen, sign);
}

// to_bf16 of kernels/bf16.h, lane by lane; Highway's own conversion truncates.
template <class D>
HWY_INLINE void store_float(hn::Vec<D> value, D /*d*/, bf16_t* p) {
  const hn::RebindToSigned<D> i32;
  const hn::RebindToUnsigned<D> u32;
  const hn::Rebind<std::uint16_t, D> u16;
  const auto bits = hn::BitCast(u32, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u32, 1));
  auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(u32, 0x7fff)));
  const auto magnitude = hn::BitCast(i32, hn::And(bits, hn::Set(u32, 0x7fffffff)));
  if (HWY_UNLIKELY(!hn::AllFalse(i32, hn::Gt(magnitude, hn::Set(i32, 0x7f7f7fff)))))
    rounded = hn::BitCast(u32, round_special(i32, hn::BitCast(i32, bits)));
  const auto high = hn::ShiftRight<16>(rounded);
  hn::StoreU(hn::TruncateTo(u16, high), u16, reinterpret_cast<std::uint16_t*>(p));
}
template <class D>
HWY_INLINE void store_float(hn::Vec<D> value, D d, float* p) {
  hn::StoreU(value, d, p);
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

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
#include <hwy/contrib/math/math-inl.h>
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

// to_bf16 of kernels/bf16.h, lane by lane; Highway's own conversion truncates.
template <class D>
HWY_INLINE void store_float(hn::Vec<D> value, D /*d*/, bf16_t* p) {
  const hn::RebindToSigned<D> i32;
  const hn::RebindToUnsigned<D> u32;
  const hn::Rebind<std::uint16_t, D> u16;
  const auto bits = hn::BitCast(i32, value);
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
  const auto high = hn::ShiftRight<16>(hn::BitCast(u32, hn::Or(chosen, sign)));
  hn::StoreU(hn::TruncateTo(u16, high), u16, reinterpret_cast<std::uint16_t*>(p));
}
template <class D>
HWY_INLINE void store_float(hn::Vec<D> value, D d, float* p) {
  hn::StoreU(value, d, p);
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

// Philox 4x32-10 in vectors: the mask of dropout.h, 64 elements at a time. Compiled once for each
// instruction set, after vectors-inl.h; private to kernels/.
#if defined(ISTHMUS_KERNELS_DROPOUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ISTHMUS_KERNELS_DROPOUT_INL_H_
#undef ISTHMUS_KERNELS_DROPOUT_INL_H_
#else
#define ISTHMUS_KERNELS_DROPOUT_INL_H_
#endif

#include "kernels/dropout_words.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

constexpr std::size_t kMaskBlock = 64;  // elements, of 16 counters

// What the elements [64 block, 64 block + 64) of a row are multiplied by: 0, or 1 / (1 - rate).
//
// A word of the state is the lower half of a 64-bit lane, as the only product that all instruction
// sets have (MulEven) reads and writes it; the upper halves are garbage that nothing reads.
HWY_INLINE void make_dropout_factors(const DropoutWords& words, std::uint32_t block,
                                     std::uint32_t row, std::uint32_t head, float* factors) {
  const hn::CappedTag<std::uint64_t, 16> u64;
  const hn::Rebind<std::uint32_t, decltype(u64)> u32;
  const hn::Rebind<float, decltype(u64)> f32;
  const auto product = [=](auto x, auto factor) {
#if HWY_TARGET == HWY_SCALAR
    return hn::MulEven(hn::TruncateTo(u32, x), hn::TruncateTo(u32, factor));
#else
    const hn::Repartition<std::uint32_t, decltype(u64)> halves;
    return hn::MulEven(hn::BitCast(halves, x), hn::BitCast(halves, factor));
#endif
  };
  const auto first_factor = hn::Set(u64, 0xD2511F53);
  const auto second_factor = hn::Set(u64, 0xCD9E8D57);
  const auto threshold = hn::Set(u32, words.dropped_below);
  for (std::size_t i = 0; i < 16; i += hn::Lanes(u64)) {
    auto c0 = hn::Iota(u64, std::uint64_t{block} * 16 + i);
    auto c1 = hn::Set(u64, row);
    auto c2 = hn::Set(u64, words.stream);
    auto c3 = hn::Set(u64, head);
    std::uint32_t low = words.low;
    std::uint32_t high = words.high;
    for (int round = 0; round < 10; ++round) {
      const auto a = product(c0, first_factor);
      const auto b = product(c2, second_factor);
      c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(b), c1), hn::Set(u64, low));
      c1 = b;
      c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(a), c3), hn::Set(u64, high));
      c3 = a;
      low += 0x9E3779B9;
      high += 0xBB67AE85;
    }
    const auto store = [=](auto word, float* to) {
      const auto dropped = hn::Lt(hn::TruncateTo(u32, word), threshold);
      hn::StoreU(hn::IfThenZeroElse(hn::RebindMask(f32, dropped), hn::Set(f32, words.kept_times)),
                 f32, to);
    };
    store(c0, factors + i);
    store(c1, factors + 16 + i);
    store(c2, factors + 32 + i);
    store(c3, factors + 48 + i);
  }
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

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
  const hn::CappedTag<std::uint64_t, 8> u64;
  const hn::Rebind<std::uint32_t, decltype(u64)> u32;
  const hn::Rebind<float, decltype(u64)> f32;
  using Words = hn::Vec<decltype(u64)>;
  const auto product = [=](Words x, Words factor) {
#if HWY_TARGET == HWY_SCALAR
    return hn::MulEven(hn::TruncateTo(u32, x), hn::TruncateTo(u32, factor));
#else
    const hn::Repartition<std::uint32_t, decltype(u64)> halves;
    return hn::MulEven(hn::BitCast(halves, x), hn::BitCast(halves, factor));
#endif
  };
  const std::size_t lanes = hn::Lanes(u64);
  const auto first_factor = hn::Set(u64, 0xD2511F53);
  const auto second_factor = hn::Set(u64, 0xCD9E8D57);
  const auto steps = hn::Iota(u64, 0);
  constexpr int kTogether = 2;  // vectors, since each alone waits for its products
  for (std::size_t first = 0; first < 16; first += kTogether * lanes) {
    Words c0[kTogether], c1[kTogether], c2[kTogether], c3[kTogether];
    ISTHMUS_UNROLL
    for (int v = 0; v < kTogether; ++v) {
      const auto from = std::uint64_t{block} * 16 + first + static_cast<std::size_t>(v) * lanes;
      c0[v] = hn::Add(steps, hn::Set(u64, from));
      c1[v] = hn::Set(u64, row);
      c2[v] = hn::Set(u64, words.stream);
      c3[v] = hn::Set(u64, head);
    }
    auto low = hn::Set(u64, words.low);
    auto high = hn::Set(u64, words.high);
    for (int round = 0; round < 10; ++round) {
      ISTHMUS_UNROLL
      for (int v = 0; v < kTogether; ++v) {
        const auto a = product(c0[v], first_factor);
        const auto b = product(c2[v], second_factor);
        c0[v] = hn::Xor(hn::Xor(hn::ShiftRight<32>(b), c1[v]), low);
        c1[v] = b;
        c2[v] = hn::Xor(hn::Xor(hn::ShiftRight<32>(a), c3[v]), high);
        c3[v] = a;
      }
      low = hn::Add(low, hn::Set(u64, 0x9E3779B9));
      high = hn::Add(high, hn::Set(u64, 0xBB67AE85));
    }
    const auto store = [=](Words word, float* to) {
      const auto dropped = hn::Lt(hn::TruncateTo(u32, word), hn::Set(u32, words.dropped_below));
      hn::StoreU(hn::IfThenZeroElse(hn::RebindMask(f32, dropped), hn::Set(f32, words.kept_times)),
                 f32, to);
    };
    ISTHMUS_UNROLL
    for (int v = 0; v < kTogether; ++v) {
      float* to = factors + first + static_cast<std::size_t>(v) * lanes;
      store(c0[v], to);
      store(c1[v], to + 16);
      store(c2[v], to + 32);
      store(c3[v], to + 48);
    }
  }
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

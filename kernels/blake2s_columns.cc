#include "kernels/blake2s_columns.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/blake2s_columns.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

using WordTag = hn::CappedTag<std::uint32_t, kBlake2sColumns>;
using Words = hn::Vec<WordTag>;

constexpr std::size_t kRowBytes = 4 * kBlake2sColumns;
constexpr std::size_t kRows = 16;  // of a block of each column

constexpr std::uint32_t kStart[8] = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                                     0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};
constexpr std::uint32_t kParameters = 0x01010000 ^ kBlake2sBytes;  // no key, sequential

template <int kBits>
HWY_INLINE Words rotate_right(Words x) {
#if HWY_TARGET <= HWY_AVX3
  return hn::RotateRight<kBits>(x);
#else
  return hn::Or(hn::ShiftRight<kBits>(x), hn::ShiftLeft<32 - kBits>(x));
#endif
}

HWY_INLINE void mix(Words& a, Words& b, Words& c, Words& d, Words x, Words y) {
  a = hn::Add(hn::Add(a, b), x);
  d = rotate_right<16>(hn::Xor(d, a));
  c = hn::Add(c, d);
  b = rotate_right<12>(hn::Xor(b, c));
  a = hn::Add(hn::Add(a, b), y);
  d = rotate_right<8>(hn::Xor(d, a));
  c = hn::Add(c, d);
  b = rotate_right<7>(hn::Xor(b, c));
}

// The order of the message words in each round (RFC 7693, section 2.7).
constexpr std::uint8_t kOrder[10][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                         {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
                                         {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
                                         {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
                                         {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
                                         {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
                                         {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
                                         {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
                                         {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
                                         {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

// One block of the columns that `rows` begins with. `bytes_so_far`: of a column, with this block.
// A loop over the rounds, whose words come from the first-level cache: unrolled it is no faster,
// and takes compilers with sanitizers many minutes.
HWY_INLINE void compress(WordTag d, Words (&h)[8], const std::byte* rows,
                         std::uint64_t bytes_so_far, bool last) {
  Words v[16];
  for (std::size_t i = 0; i < 8; ++i) v[i] = h[i];
  for (std::size_t i = 0; i < 8; ++i) v[8 + i] = hn::Set(d, kStart[i]);
  v[12] = hn::Xor(v[12], hn::Set(d, static_cast<std::uint32_t>(bytes_so_far)));
  v[13] = hn::Xor(v[13], hn::Set(d, static_cast<std::uint32_t>(bytes_so_far >> 32)));
  if (last) v[14] = hn::Xor(v[14], hn::Set(d, 0xFFFFFFFFU));
  for (const auto& order : kOrder) {
    const auto word = [&](std::size_t i) {
      return hn::LoadU(d, reinterpret_cast<const std::uint32_t*>(rows + order[i] * kRowBytes));
    };
    mix(v[0], v[4], v[8], v[12], word(0), word(1));
    mix(v[1], v[5], v[9], v[13], word(2), word(3));
    mix(v[2], v[6], v[10], v[14], word(4), word(5));
    mix(v[3], v[7], v[11], v[15], word(6), word(7));
    mix(v[0], v[5], v[10], v[15], word(8), word(9));
    mix(v[1], v[6], v[11], v[12], word(10), word(11));
    mix(v[2], v[7], v[8], v[13], word(12), word(13));
    mix(v[3], v[4], v[9], v[14], word(14), word(15));
  }
  for (std::size_t i = 0; i < 8; ++i) h[i] = hn::Xor(h[i], hn::Xor(v[i], v[8 + i]));
}

void hash_columns(const std::byte* bytes, std::size_t count, std::byte* digests) {
  const WordTag d;
  const std::size_t lanes = hn::Lanes(d);
  constexpr std::size_t kBlockBytes = kRows * kRowBytes;
  const std::size_t rows = (count + kRowBytes - 1) / kRowBytes;
  // The last block of a column is compressed as the last one even when it is full; with no bytes it
  // is all zeros.
  const std::size_t blocks = rows == 0 ? 1 : (rows + kRows - 1) / kRows;
  const std::size_t before_last = (blocks - 1) * kBlockBytes;
  std::byte tail[kBlockBytes] = {};
  if (count > before_last) std::memcpy(tail, bytes + before_last, count - before_last);
  for (std::size_t first = 0; first < kBlake2sColumns; first += lanes) {
    Words h[8];
    for (std::size_t i = 0; i < 8; ++i) h[i] = hn::Set(d, kStart[i]);
    h[0] = hn::Xor(h[0], hn::Set(d, kParameters));
    for (std::size_t block = 0; block + 1 < blocks; ++block)
      compress(d, h, bytes + block * kBlockBytes + 4 * first, (block + 1) * kRows * 4, false);
    compress(d, h, tail + 4 * first, rows * 4, true);
    std::uint32_t words[kBlake2sColumns];
    for (std::size_t i = 0; i < 8; ++i) {
      hn::StoreU(h[i], d, words);
      for (std::size_t lane = 0; lane < lanes; ++lane)
        std::memcpy(digests + (first + lane) * kBlake2sBytes + 4 * i, words + lane, 4);
    }
  }
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(hash_columns);

std::array<std::byte, kBlake2sColumns * kBlake2sBytes> blake2s_columns(
    std::span<const std::byte> bytes) {
  std::array<std::byte, kBlake2sColumns * kBlake2sBytes> digests;
  HWY_DYNAMIC_DISPATCH(hash_columns)(bytes.data(), bytes.size(), digests.data());
  return digests;
}

}  // namespace isthmus::kernels
#endif

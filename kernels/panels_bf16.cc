#include "base/assert.h"
#include "kernels/panels.h"

#if defined(__x86_64__)
// g++ 12 warns of the values its own intrinsics leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

// Not -mavx512bf16 for the file: inline functions of the headers above would be compiled for
// AVX-512 too, and could be linked into code that runs everywhere.
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")

namespace isthmus::kernels {
namespace {

using Pair = std::uint32_t;
using Half = std::uint16_t;

constexpr std::int64_t kLanes = 16;
static_assert(kPanelColumns == 2 * kLanes);

// As in panels.cc.
constexpr std::int64_t kStepsAhead = 16;
constexpr std::int64_t kLinesAhead = 12;
constexpr std::int64_t kStepsTogether = 4;

inline __attribute__((always_inline)) __m512bh pairs_at(const Pair* p) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p));
}

inline __mmask16 first_lanes(std::int64_t count) {
  if (count <= 0) return 0;
  return count >= kLanes ? 0xffff : static_cast<__mmask16>((1U << count) - 1);
}

inline __attribute__((always_inline)) void put_half_row(__m512 sums, __mmask16 lanes,
                                                        const TileTarget& to, std::int64_t at) {
  if (to.dtype == DType::bf16) {
    _mm256_mask_storeu_epi16(static_cast<bf16_t*>(to.data) + at, lanes,
                             reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sums)));
    return;
  }
  auto* c = static_cast<float*>(to.data) + at;
  if (to.streams && lanes == 0xffff) return _mm512_stream_ps(c, sums);
  if (to.adds) sums = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, c), sums);
  _mm512_mask_storeu_ps(c, lanes, sums);
}

template <int kRows>
__attribute__((noinline)) void multiply_rows(std::int64_t units, const Pair* a, const Pair* b,
                                             std::int64_t columns, const TileTarget& to) {
  __m512 sums[kRows][2];
#pragma GCC unroll 32
  for (int i = 0; i < kRows; ++i) sums[i][0] = sums[i][1] = _mm512_setzero_ps();
  for (std::int64_t l = 0, row = 0; l < units; ++l, a += kRows, b += kPanelColumns) {
    if (l % kStepsAhead == 0 && row < kRows && !to.streams) {
      const char* c = static_cast<const char*>(to.at(row++, 0).data);
      __builtin_prefetch(c, 1);
      __builtin_prefetch(c + 64, 1);
    }
    __builtin_prefetch(a + kStepsAhead * kRows);
    __builtin_prefetch(b + kStepsAhead * kPanelColumns);
    __builtin_prefetch(b + kStepsAhead * kPanelColumns + kLanes);
    const __m512bh right0 = pairs_at(b);
    const __m512bh right1 = pairs_at(b + kLanes);
#pragma GCC unroll 32
    for (int i = 0; i < kRows; ++i) {
      const auto left = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a[i])));
      sums[i][0] = _mm512_dpbf16_ps(sums[i][0], left, right0);
      sums[i][1] = _mm512_dpbf16_ps(sums[i][1], left, right1);
    }
  }
  const __mmask16 low = first_lanes(columns);
  const __mmask16 high = first_lanes(columns - kLanes);
#pragma GCC unroll 32
  for (int i = 0; i < kRows; ++i) {
    put_half_row(sums[i][0], low, to, i * to.stride);
    put_half_row(sums[i][1], high, to, i * to.stride + kLanes);
  }
}

template <int kRows>
void multiply_pairs(std::int64_t units, const Pair* a, std::int64_t rows, const Pair* b,
                    std::int64_t columns, const TileTarget& to) {
  if (rows == kRows) return multiply_rows<kRows>(units, a, b, columns, to);
  if constexpr (kRows > 1) multiply_pairs<kRows - 1>(units, a, rows, b, columns, to);
}

Pair pair_of(Half first, Half second) { return first | static_cast<Pair>(second) << 16; }

inline __attribute__((always_inline)) __m128i four_pairs_at(const Half* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline __attribute__((always_inline)) void put_four(__m128i pairs, Pair* p) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), pairs);
}

// Four lines that lie along k, four pairs of each: turned.
inline __attribute__((always_inline)) void pack_four_by_four(const Half* in,
                                                             std::int64_t line_stride, Pair* out,
                                                             std::int64_t width) {
  const __m128i line0 = four_pairs_at(in);
  const __m128i line1 = four_pairs_at(in + line_stride);
  const __m128i line2 = four_pairs_at(in + 2 * line_stride);
  const __m128i line3 = four_pairs_at(in + 3 * line_stride);
  const __m128i low01 = _mm_unpacklo_epi32(line0, line1);
  const __m128i low23 = _mm_unpacklo_epi32(line2, line3);
  const __m128i high01 = _mm_unpackhi_epi32(line0, line1);
  const __m128i high23 = _mm_unpackhi_epi32(line2, line3);
  put_four(_mm_unpacklo_epi64(low01, low23), out);
  put_four(_mm_unpackhi_epi64(low01, low23), out + width);
  put_four(_mm_unpacklo_epi64(high01, high23), out + 2 * width);
  put_four(_mm_unpackhi_epi64(high01, high23), out + 3 * width);
}

inline __attribute__((always_inline)) void prefetch_to_l2(const void* p) {
  __builtin_prefetch(p, 0, 2);
}

// Of one panel, pairs [first, end) of k steps of lines that lie along k.
void pack_turned(const Half* in, std::int64_t line_stride, std::int64_t lines, std::int64_t first,
                 std::int64_t end, std::int64_t k, std::int64_t width, Pair* out) {
  if (lines >= 4) {
    const std::int64_t full = end <= k / 2 ? end : k / 2;
    const std::int64_t whole = first + (full - first) / 4 * 4;
    for (std::int64_t line = 0; line < lines; line += 4) {
      const std::int64_t from = line + 4 <= lines ? line : lines - 4;  // the last four, again
      const Half* ahead = in + (from + kLinesAhead) * line_stride;     // of this panel or another
      for (std::int64_t l = first; l < whole; l += 4) {
        if (l % 16 == 0)
          for (std::int64_t i = 0; i < 4; ++i) prefetch_to_l2(ahead + i * line_stride + 2 * l);
        pack_four_by_four(in + from * line_stride + 2 * l, line_stride, out + l * width + from,
                          width);
      }
    }
    first = whole;
  }
  for (std::int64_t l = first; l < end; ++l)
    for (std::int64_t line = 0; line < lines; ++line) {
      const Half* pair = in + line * line_stride + 2 * l;
      out[l * width + line] = pair_of(pair[0], 2 * l + 1 < k ? pair[1] : Half{0});
    }
}

inline __attribute__((always_inline)) __m512i halves_at(const Half* p, __mmask16 lanes) {
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, p));
}

// Pairs of `lines`, at most 16, side by side. Without `second` it is zeros.
inline __attribute__((always_inline)) void pack_side_by_side(const Half* first, const Half* second,
                                                             std::int64_t lines, Pair* out) {
  const __mmask16 lanes = first_lanes(lines);
  __m512i pairs = halves_at(first, lanes);
  if (second != nullptr)
    pairs = _mm512_or_si512(pairs, _mm512_slli_epi32(halves_at(second, lanes), 16));
  _mm512_mask_storeu_epi32(out, lanes, pairs);
}

// The same of 32 lines.
inline __attribute__((always_inline)) void pack_32_side_by_side(const Half* first,
                                                                const Half* second, Pair* out) {
  const __m512i low = _mm512_loadu_si512(first);
  const __m512i high = _mm512_loadu_si512(second);
  // Four pairs in each 128 bits: 0 to 3, 8 to 11, 16 to 19, 24 to 27; and those between.
  const __m512i even = _mm512_unpacklo_epi16(low, high);
  const __m512i odd = _mm512_unpackhi_epi16(low, high);
  const __m512i to_first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i to_last = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  _mm512_storeu_si512(out, _mm512_permutex2var_epi64(even, to_first, odd));
  _mm512_storeu_si512(out + kLanes, _mm512_permutex2var_epi64(even, to_last, odd));
}

// Of 12 lines four pairs each: three vectors. Four lines more must be there to be read.
inline __attribute__((always_inline)) void pack_12_by_four(const Half* in, std::int64_t step_stride,
                                                           Pair* out) {
  static_assert(kPanelRows == 12 && kStepsTogether == 4);
  __m512i pairs[4];  // of 16 lines
#pragma GCC unroll 4
  for (int l = 0; l < 4; ++l) {
    const Half* step = in + 2 * l * step_stride;
    pairs[l] = _mm512_or_si512(halves_at(step, 0xffff),
                               _mm512_slli_epi32(halves_at(step + step_stride, 0xffff), 16));
  }
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19);
  const __m512i second =
      _mm512_setr_epi32(4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19, 20, 21, 22, 23);
  const __m512i third =
      _mm512_setr_epi32(8, 9, 10, 11, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27);
  _mm512_storeu_si512(out, _mm512_permutex2var_epi32(pairs[0], first, pairs[1]));
  _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi32(pairs[1], second, pairs[2]));
  _mm512_storeu_si512(out + 32, _mm512_permutex2var_epi32(pairs[2], third, pairs[3]));
}

// Pairs [first, end) of k steps, of lines that lie side by side.
void pack_straight(const Half* in, std::int64_t step_stride, const PanelLayout& layout,
                   std::int64_t first, std::int64_t end, std::int64_t k, Pair* out) {
  const auto panels = layout.panels();
  for (std::int64_t begin = first; begin < end; begin += kStepsTogether) {
    const auto stop = begin + kStepsTogether < end ? begin + kStepsTogether : end;
    for (std::int64_t step = 2 * begin; step < 2 * stop; ++step)
      for (std::int64_t line = 0; line < layout.lines; line += 32)
        prefetch_to_l2(in + (step + 2 * kStepsAhead) * step_stride + line);
    for (std::int64_t panel = 0, line = 0; panel < panels; ++panel, line += layout.width) {
      const auto lines = layout.lines_of(panel), width = layout.width_of(panel);
      if (stop - begin == kStepsTogether && 2 * stop <= k && layout.width == kPanelRows &&
          line + kLanes <= layout.lines) {
        pack_12_by_four(in + 2 * begin * step_stride + line, step_stride,
                        out + panel * layout.width * layout.units + begin * width);
        continue;
      }
      for (std::int64_t l = begin; l < stop; ++l) {
        const Half* step = in + 2 * l * step_stride + line;
        const Half* next = 2 * l + 1 < k ? step + step_stride : nullptr;
        Pair* to = out + panel * layout.width * layout.units + l * width;
        if (next != nullptr && lines == kPanelColumns) {
          pack_32_side_by_side(step, next, to);
        } else {
          for (std::int64_t i = 0; i < lines; i += kLanes)
            pack_side_by_side(step + i, next == nullptr ? nullptr : next + i, lines - i, to + i);
        }
      }
    }
  }
}

void pack_pairs(const Factor& factor, const PanelLayout& layout, void* panels_memory) {
  constexpr std::int64_t kAtOnce = 128;  // pairs, where lines lie along k
  ISTHMUS_ASSERT(factor.dtype == DType::bf16 && layout.first_step % 2 == 0);
  const auto* in = static_cast<const Half*>(factor.data);
  auto* out = static_cast<Pair*>(panels_memory);
  const auto k = layout.end_step;
  const auto first = layout.first_step / 2, end = (k + 1) / 2;
  const auto width = layout.width, panels = layout.panels();
  const auto panel_pairs = width * layout.units;
  if (factor.lies_along_inner()) {
    for (std::int64_t l = first; l < end; l += kAtOnce)
      for (std::int64_t panel = 0; panel < panels; ++panel)
        pack_turned(in + panel * width * factor.line_stride, factor.line_stride,
                    layout.lines_of(panel), l, l + kAtOnce < end ? l + kAtOnce : end, k,
                    layout.width_of(panel), out + panel * panel_pairs);
  } else {
    pack_straight(in, factor.inner_stride, layout, first, end, k, out);
  }
  const auto whole = layout.lines / width;
  if (whole == panels || !layout.fills) return;
  for (std::int64_t l = first; l < end; ++l)
    for (std::int64_t line = layout.lines_of(whole); line < width; ++line)
      out[whole * panel_pairs + l * width + line] = 0;
}

}  // namespace

const PanelKernels& bf16_panels() {
  static constexpr PanelKernels kKernels{
      2, pack_pairs,
      [](std::int64_t units, const void* a, std::int64_t rows, const void* b, std::int64_t columns,
         const TileTarget& to) {
        multiply_pairs<static_cast<int>(kPanelRows)>(units, static_cast<const Pair*>(a), rows,
                                                     static_cast<const Pair*>(b), columns, to);
      }};
  return kKernels;
}

}  // namespace isthmus::kernels

#pragma GCC pop_options

#else

namespace isthmus::kernels {

const PanelKernels& bf16_panels() {
  ISTHMUS_ASSERT(false && "this CPU does not multiply bf16");
  return float_panels();
}

}  // namespace isthmus::kernels

#endif

#include "kernels/attention_bf16.h"

#include "base/assert.h"
#include "kernels/attention_layout.h"
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

// A pair is two bf16 in 32 bits, the lower one first. Two layouts of a block of 64 rows:
//
//   across    [ceil(head_dim / 2)][64]  pair i of 64 rows side by side: the right factor of q·kᵀ
//   stacked   [32][width]               elements of rows 2l and 2l+1: a right factor by rows,
//                                       and down its columns a transposed left factor
using Pair = std::uint32_t;

constexpr std::int64_t kBlock = AttentionLayout::kBlock;
constexpr std::int64_t kLanes = 16;
constexpr std::int64_t kStrip = 16;
constexpr int kTileRows = 4;
constexpr std::int64_t kRowsAhead = 16;  // asked of memory
constexpr float kMasked = -1e30F;
constexpr float kBitsPerNat = 1.44269504F;

struct PairFactor {
  const Pair* data;
  std::int64_t row_stride;
  std::int64_t pair_stride;
};

enum class Sum { set, add };

// c [4, kVectors * 16] = or += a [4, 2 * pairs] · b [2 * pairs, kVectors * 16]
template <Sum kSum, int kVectors>
inline __attribute__((always_inline)) void multiply_tile(std::int64_t pairs, const PairFactor& a,
                                                         const Pair* b, std::int64_t b_stride,
                                                         float* c, std::int64_t c_stride) {
  __m512 sums[kTileRows][kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kTileRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j)
      sums[i][j] =
          kSum == Sum::add ? _mm512_loadu_ps(c + i * c_stride + j * kLanes) : _mm512_setzero_ps();
  for (std::int64_t l = 0; l < pairs; ++l) {
    __m512bh right[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j)
      right[j] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b + l * b_stride + j * kLanes));
#pragma GCC unroll 4
    for (int i = 0; i < kTileRows; ++i) {
      const auto left = reinterpret_cast<__m512bh>(
          _mm512_set1_epi32(static_cast<int>(a.data[i * a.row_stride + l * a.pair_stride])));
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], left, right[j]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kTileRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) _mm512_storeu_ps(c + i * c_stride + j * kLanes, sums[i][j]);
}

// c [m, n] = or += a · b; m a multiple of 4, n of 16.
template <Sum kSum>
void multiply(std::int64_t m, std::int64_t n, std::int64_t pairs, const PairFactor& a,
              const Pair* b, std::int64_t b_stride, float* c, std::int64_t c_stride) {
  std::int64_t column = 0;
  for (; column + 4 * kLanes <= n; column += 4 * kLanes)
    for (std::int64_t row = 0; row < m; row += kTileRows)
      multiply_tile<kSum, 4>(pairs, {a.data + row * a.row_stride, a.row_stride, a.pair_stride},
                             b + column, b_stride, c + row * c_stride + column, c_stride);
  for (; column < n; column += kLanes)
    for (std::int64_t row = 0; row < m; row += kTileRows)
      multiply_tile<kSum, 1>(pairs, {a.data + row * a.row_stride, a.row_stride, a.pair_stride},
                             b + column, b_stride, c + row * c_stride + column, c_stride);
}

// 2^x for x <= 127 by a polynomial (relative error below 3e-6, as weights become bf16 and sums of
// them need be no more exact; none at 0), 0 for very small x.
inline __attribute__((always_inline)) __m512 power_of_two(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-200.0F), x);  // in this order NaN stays
  const __m512 n = _mm512_roundscale_ps(x, 8);
  const __m512 r = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(0.00958283711F);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.0559064373F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.240240991F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.693124175F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F));
  return _mm512_scalef_ps(p, n);
}

inline __attribute__((always_inline)) __m256i rounded(__m512 x) {
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
}

inline __attribute__((always_inline)) __m512 widened(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// Rows of a head to [64][width] bf16, zeros beyond `rows` and head_dim.
void copy_block(const Rows& from, std::int64_t first_row, std::int64_t column, std::int64_t rows,
                const AttentionLayout& layout, Pair* to) {
  using Half [[gnu::may_alias]] = std::uint16_t;  // of a Pair
  auto* out = reinterpret_cast<Half*>(to);
  for (std::int64_t r = 0; r < kBlock; ++r, out += layout.width) {
    std::int64_t filled = 0;
    if (r < rows) {
      const auto* in = static_cast<const std::uint16_t*>(from.at(first_row + r, column));
      for (std::int64_t i = 0; i < layout.head_dim; i += 32)
        __builtin_prefetch(in + kRowsAhead * from.stride + i);
      for (; filled + kLanes <= layout.head_dim; filled += kLanes)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + filled),
                            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + filled)));
      for (; filled < layout.head_dim; ++filled) out[filled] = in[filled];
    }
    for (; filled < layout.width; ++filled) out[filled] = 0;
  }
}

// Of the block of rows that begins at `first`.
std::int64_t rows_from(std::int64_t first, std::int64_t length) {
  return length - first < kBlock ? length - first : kBlock;
}

std::int64_t pairs_of(std::int64_t elements) { return (elements + 1) / 2; }

// Rows of a head across; those beyond `rows` are zeros.
void lay_across(const Rows& from, std::int64_t first_row, std::int64_t column, std::int64_t rows,
                const AttentionLayout& layout, Pair* to) {
  const auto d = layout.head_dim;
  bf16_panels().pack(Factor::rows(from.at(first_row, column), DType::bf16, from.stride),
                     {rows, kBlock, true, pairs_of(d), 0, d}, to);
}

inline __attribute__((always_inline)) __m512i stacked(__m256i upper, __m256i lower) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(upper),
                         _mm512_slli_epi32(_mm512_cvtepu16_epi32(lower), 16));
}

// Rows of bf16, `width` long, to stacked pairs.
void stack_rows(const Pair* block, std::int64_t rows, std::int64_t width, Pair* to) {
  const auto* in = reinterpret_cast<const std::uint16_t*>(block);
  for (std::int64_t r = 0; r < rows; r += 2)
    for (std::int64_t i = 0; i < width; i += kLanes) {
      const auto* upper = reinterpret_cast<const __m256i*>(in + r * width + i);
      const auto* lower = reinterpret_cast<const __m256i*>(in + (r + 1) * width + i);
      _mm512_storeu_si512(to + r / 2 * width + i,
                          stacked(_mm256_loadu_si256(upper), _mm256_loadu_si256(lower)));
    }
}

// `rows` rows of [64][width] f32, times a factor, to bf16 rows of a head.
void store_block(const float* from, std::int64_t rows, float factor, const AttentionLayout& layout,
                 const Rows& to, std::int64_t first_row, std::int64_t column) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* in = from + r * layout.width;
    auto* out = static_cast<std::uint16_t*>(to.at(first_row + r, column));
    for (std::int64_t i = 0; i < layout.head_dim; i += kLanes) {
      const std::int64_t left = layout.head_dim - i;
      const auto mask = static_cast<__mmask16>(left >= kLanes ? 0xffffU : (1U << left) - 1U);
      _mm256_mask_storeu_epi16(
          out + i, mask, rounded(_mm512_mul_ps(_mm512_loadu_ps(in + i), _mm512_set1_ps(factor))));
    }
  }
}

// Of a block's keys the row sees [first, end).
void mask_row(float* scores, std::int64_t columns, std::int64_t first, std::int64_t end) {
  for (std::int64_t i = 0; i < first && i < columns; ++i) scores[i] = kMasked;
  for (std::int64_t i = end < 0 ? 0 : end; i < columns; ++i) scores[i] = kMasked;
}

// Of each row so far: its largest score, in bits, the sum of its weights, and of what they weigh.
struct Softened {
  float* largest;
  float* total;
  float* sums;
  std::int64_t width;

  Softened from(std::int64_t row) const {
    return {largest + row, total + row, sums + row * width, width};
  }
};

// As in attention.cc, but scores are scaled here, to bits, and the weights leave as bf16. kRows at
// once, so that they need not wait for each other's sums over lanes.
template <int kRows>
void soften_rows(const float* scores, std::int64_t columns, float bit_scale, const Softened& to,
                 Pair* weights) {
  const __m512 factor = _mm512_set1_ps(bit_scale);
  __m512 largest[kRows], added[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    largest[r] = _mm512_set1_ps(to.largest[r]);
    added[r] = _mm512_setzero_ps();
  }
  for (std::int64_t i = 0; i < columns; i += kLanes)
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
      largest[r] = _mm512_max_ps(largest[r],
                                 _mm512_mul_ps(_mm512_loadu_ps(scores + r * kBlock + i), factor));
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) largest[r] = _mm512_set1_ps(_mm512_reduce_max_ps(largest[r]));
  for (std::int64_t i = 0; i < columns; i += kLanes)
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m512 weight = power_of_two(
          _mm512_fmsub_ps(_mm512_loadu_ps(scores + r * kBlock + i), factor, largest[r]));
      added[r] = _mm512_add_ps(added[r], weight);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights + (r * kBlock + i) / 2),
                          rounded(weight));
    }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const float now = _mm512_cvtss_f32(largest[r]);
    const __m512 shrink = power_of_two(_mm512_set1_ps(to.largest[r] - now));
    to.total[r] = to.total[r] * _mm512_cvtss_f32(shrink) + _mm512_reduce_add_ps(added[r]);
    if (now == to.largest[r]) continue;
    to.largest[r] = now;
    float* row = to.sums + r * to.width;
    for (std::int64_t i = 0; i < to.width; i += kLanes)
      _mm512_storeu_ps(row + i, _mm512_mul_ps(_mm512_loadu_ps(row + i), shrink));
  }
}

// The scores of queries from `query` on with the keys from `key` on; a multiple of four of them.
void soften_strip(const FirstKeys& first_keys, std::int64_t query, std::int64_t rows,
                  std::int64_t key, std::int64_t columns, float bit_scale, float* scores,
                  const Softened& to, Pair* weights) {
  const auto sees = [&](std::int64_t row) { return first_keys.at(query + row) < key + columns; };
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t first = first_keys.at(query + row) - key, end = query + row + 1 - key;
    if (sees(row) && (first > 0 || end < columns))
      mask_row(scores + row * kBlock, columns, first, end);
  }
  for (std::int64_t row = 0; row < rows; row += kTileRows) {
    if (sees(row + kTileRows - 1)) {  // and so do those before
      soften_rows<kTileRows>(scores + row * kBlock, columns, bit_scale, to.from(row),
                             weights + row * kBlock / 2);
      continue;
    }
    for (std::int64_t r = row; r < row + kTileRows; ++r) {
      Pair* of_row = weights + r * kBlock / 2;
      if (sees(r)) {
        soften_rows<1>(scores + r * kBlock, columns, bit_scale, to.from(r), of_row);
        continue;
      }
      for (std::int64_t i = 0; i < columns / 2; ++i) of_row[i] = 0;
    }
  }
}

template <class Strip>
inline __attribute__((always_inline)) void for_strips(std::int64_t rows, bool diagonal,
                                                      const Strip& strip) {
  if (!diagonal) {
    strip(0, rows, kBlock);
    return;
  }
  for (std::int64_t first = 0; first < rows; first += kStrip)
    strip(first, rows - first < kStrip ? rows - first : kStrip, first + kStrip);
}

// Two rows: p = 2^(bit_scale * score - log_sum), ds = p * (dp - delta), both as bf16, by rows and
// stacked.
void gradient_rows(const float* scores, const float* dscores, std::int64_t columns, float bit_scale,
                   const float* log_sum, const float* delta, Pair* p_stacked, Pair* ds_stacked,
                   std::uint16_t* ds) {
  for (std::int64_t i = 0; i < columns; i += kLanes) {
    __m256i p[2];
    __m256i s[2];
    for (int r = 0; r < 2; ++r) {
      const __m512 score = _mm512_loadu_ps(scores + r * kBlock + i);
      const __m512 weight = power_of_two(
          _mm512_fmsub_ps(score, _mm512_set1_ps(bit_scale), _mm512_set1_ps(log_sum[r])));
      const __m512 dp =
          _mm512_sub_ps(_mm512_loadu_ps(dscores + r * kBlock + i), _mm512_set1_ps(delta[r]));
      p[r] = rounded(weight);
      s[r] = rounded(_mm512_mul_ps(weight, dp));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(ds + r * kBlock + i), s[r]);
    }
    _mm512_storeu_si512(p_stacked + i, stacked(p[0], p[1]));
    _mm512_storeu_si512(ds_stacked + i, stacked(s[0], s[1]));
  }
}

float dot(const Pair* a, const Pair* b, std::int64_t width) {
  __m512 sum = _mm512_setzero_ps();
  const auto* left = reinterpret_cast<const std::uint16_t*>(a);
  const auto* right = reinterpret_cast<const std::uint16_t*>(b);
  for (std::int64_t i = 0; i < width; i += kLanes)
    sum = _mm512_fmadd_ps(widened(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(left + i))),
                          widened(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(right + i))),
                          sum);
  return _mm512_reduce_add_ps(sum);
}

// Where a backward task has what: of all keys, by block; of one block of queries; of one block of
// queries and one of keys.
struct BackwardScratch {
  BackwardScratch(const AttentionLayout& layout, float* begin)
      : half(layout.plain_floats() / 2),
        keys_across(reinterpret_cast<Pair*>(begin)),
        values_across(keys_across + layout.key_blocks * layout.transposed_floats()),
        keys_stacked(values_across + layout.key_blocks * layout.transposed_floats()),
        dkeys(reinterpret_cast<float*>(keys_stacked + layout.key_blocks * layout.plain_floats())),
        dvalues(dkeys + layout.key_blocks * layout.plain_floats()),
        queries(reinterpret_cast<Pair*>(dvalues + layout.key_blocks * layout.plain_floats())),
        queries_stacked(queries + half),
        douts(queries_stacked + half),
        douts_stacked(douts + half),
        staging(douts_stacked + half),
        dqueries(reinterpret_cast<float*>(staging + half)),
        scores(dqueries + layout.plain_floats()),
        dscores(scores + kBlock * kBlock),
        p_stacked(reinterpret_cast<Pair*>(dscores + kBlock * kBlock)),
        ds_stacked(p_stacked + kBlock * kBlock / 2),
        ds_rows(ds_stacked + kBlock * kBlock / 2),
        delta(reinterpret_cast<float*>(ds_rows + kBlock * kBlock / 2)),
        log_sum(delta + kBlock) {}

  std::int64_t half;  // pairs of a block
  Pair *keys_across, *values_across, *keys_stacked;
  float *dkeys, *dvalues;
  Pair *queries, *queries_stacked, *douts, *douts_stacked, *staging;
  float* dqueries;
  float *scores, *dscores;
  Pair *p_stacked, *ds_stacked, *ds_rows;
  float *delta, *log_sum;  // of the queries; log_sum in bits
};

void load_keys(const AttentionShape& shape, const AttentionLayout& layout, const Rows& k,
               const Rows& v, std::int64_t first_row, std::int64_t column,
               const BackwardScratch& s) {
  const std::int64_t plain = layout.plain_floats();
  const std::int64_t across = layout.transposed_floats();
  for (std::int64_t block = 0; block < layout.key_blocks; ++block) {
    const std::int64_t key = block * kBlock;
    const std::int64_t rows = rows_from(key, shape.sequence);
    lay_across(k, first_row + key, column, rows, layout, s.keys_across + block * across);
    lay_across(v, first_row + key, column, rows, layout, s.values_across + block * across);
    copy_block(k, first_row + key, column, rows, layout, s.staging);
    stack_rows(s.staging, kBlock, layout.width, s.keys_stacked + block * plain);
  }
  for (std::int64_t i = 0; i < 2 * layout.key_blocks * plain; ++i) s.dkeys[i] = 0.0F;
}

// `count` queries with what their gradient needs: delta = dout · out, and `log_sums`.
void load_queries(const AttentionLayout& layout, const Rows& q, const Rows& out, const Rows& dout,
                  const float* log_sums, std::int64_t row, std::int64_t column, std::int64_t count,
                  const BackwardScratch& s) {
  const std::int64_t w = layout.width;
  copy_block(q, row, column, count, layout, s.queries);
  stack_rows(s.queries, kBlock, w, s.queries_stacked);
  copy_block(dout, row, column, count, layout, s.douts);
  stack_rows(s.douts, kBlock, w, s.douts_stacked);
  copy_block(out, row, column, count, layout, s.staging);
  for (std::int64_t r = 0; r < kBlock; ++r) {
    s.delta[r] = dot(s.douts + r * w / 2, s.staging + r * w / 2, w);
    s.log_sum[r] = r < count ? log_sums[r] * kBitsPerNat : 0.0F;
  }
  for (std::int64_t i = 0; i < layout.plain_floats(); ++i) s.dqueries[i] = 0.0F;
}

// p and ds of the block of keys from `key` on, stacked, and dqueries += ds k.
void to_queries(const AttentionLayout& layout, float bit_scale, const FirstKeys& first_keys,
                std::int64_t query, std::int64_t rows, std::int64_t key, const BackwardScratch& s) {
  const bool diagonal = key == query;
  const std::int64_t block = key / kBlock;
  const std::int64_t d = layout.head_dim;
  const std::int64_t w = layout.width;
  const Pair* keys_across = s.keys_across + block * layout.transposed_floats();
  const Pair* values_across = s.values_across + block * layout.transposed_floats();
  const Pair* keys_stacked = s.keys_stacked + block * layout.plain_floats();
  for_strips(
      rows, diagonal, [&](std::int64_t first, std::int64_t strip_rows, std::int64_t columns) {
        float* strip = s.scores + first * kBlock;
        float* dstrip = s.dscores + first * kBlock;
        Pair* ds_strip = s.ds_rows + first * kBlock / 2;
        multiply<Sum::set>(strip_rows, columns, pairs_of(d), {s.queries + first * w / 2, w / 2, 1},
                           keys_across, kBlock, strip, kBlock);
        multiply<Sum::set>(strip_rows, columns, pairs_of(d), {s.douts + first * w / 2, w / 2, 1},
                           values_across, kBlock, dstrip, kBlock);
        for (std::int64_t r = 0; r < strip_rows; r += 2) {
          for (const std::int64_t row : {first + r, first + r + 1}) {
            const std::int64_t seen = first_keys.at(query + row) - key;
            if (diagonal || seen > 0)
              mask_row(s.scores + row * kBlock, columns, seen, query + row + 1 - key);
          }
          const std::int64_t at = (first + r) / 2 * kBlock;
          gradient_rows(strip + r * kBlock, dstrip + r * kBlock, columns, bit_scale,
                        s.log_sum + first + r, s.delta + first + r, s.p_stacked + at,
                        s.ds_stacked + at,
                        reinterpret_cast<std::uint16_t*>(ds_strip + r * kBlock / 2));
        }
        multiply<Sum::add>(strip_rows, w, columns / 2, {ds_strip, kBlock / 2, 1}, keys_stacked, w,
                           s.dqueries + first * w, w);
      });
}

// The same block by keys: dvalues += pᵀ dout, dkeys += dsᵀ q. On the diagonal, key strip s is seen
// by the queries from its own first on.
void to_keys(const AttentionLayout& layout, std::int64_t rows, std::int64_t block, bool diagonal,
             const BackwardScratch& s) {
  const std::int64_t w = layout.width;
  float* dkeys = s.dkeys + block * layout.plain_floats();
  float* dvalues = s.dvalues + block * layout.plain_floats();
  const std::int64_t keys_here = diagonal ? kStrip : kBlock;
  for (std::int64_t first = 0; first < kBlock; first += keys_here) {
    const std::int64_t from = diagonal ? first : 0;
    if (from >= rows) break;
    const std::int64_t pairs = (rows - from) / 2;
    const std::int64_t corner = from / 2 * kBlock + first;
    multiply<Sum::add>(keys_here, w, pairs, {s.p_stacked + corner, 1, kBlock},
                       s.douts_stacked + from / 2 * w, w, dvalues + first * w, w);
    multiply<Sum::add>(keys_here, w, pairs, {s.ds_stacked + corner, 1, kBlock},
                       s.queries_stacked + from / 2 * w, w, dkeys + first * w, w);
  }
}

}  // namespace

void bf16_forward_task(const AttentionShape& shape, const Rows& q, const Rows& k, const Rows& v,
                       const FirstKeys& first_keys, const Rows& out, float* log_sums,
                       float* scratch, std::int64_t b, std::int64_t h, std::int64_t first_query,
                       std::int64_t end_query) {
  const AttentionLayout layout(shape);
  const std::int64_t d = shape.head_dim;
  const std::int64_t w = layout.width;
  const std::int64_t key_column = h / (shape.heads / shape.kv_heads) * d;
  const std::int64_t blocks = (end_query + kBlock - 1) / kBlock;
  const std::int64_t across = layout.transposed_floats();
  const std::int64_t plain = layout.plain_floats();
  auto* keys = reinterpret_cast<Pair*>(scratch);
  Pair* values = keys + layout.key_blocks * across;  // stacked
  Pair* queries = values + layout.key_blocks * plain;
  auto* sums = reinterpret_cast<float*>(queries + plain);
  float* scores = sums + plain;
  auto* weights = reinterpret_cast<Pair*>(scores + kBlock * kBlock);
  auto* largest = reinterpret_cast<float*>(weights + kBlock * kBlock);
  float* total = largest + kBlock;
  const float bit_scale = shape.scale * kBitsPerNat;

  const std::int64_t first_key = b * shape.sequence;
  for (std::int64_t block = first_keys.block_at(first_query) / kBlock; block < blocks; ++block) {
    const std::int64_t key = block * kBlock;
    const std::int64_t rows = rows_from(key, end_query);
    lay_across(k, first_key + key, key_column, rows, layout, keys + block * across);
    copy_block(v, first_key + key, key_column, rows, layout, queries);
    stack_rows(queries, kBlock, w, values + block * plain);
  }

  for (std::int64_t query = first_query; query < end_query; query += kBlock) {
    const std::int64_t count = rows_from(query, end_query);
    const std::int64_t rows = (count + kTileRows - 1) / kTileRows * kTileRows;
    const std::int64_t row = b * shape.sequence + query;
    copy_block(q, row, h * d, count, layout, queries);
    for (std::int64_t i = 0; i < plain; ++i) sums[i] = 0.0F;
    for (std::int64_t i = 0; i < kBlock; ++i) {
      largest[i] = kMasked;
      total[i] = 0.0F;
    }
    for (std::int64_t key = first_keys.block_at(query); key < query + count; key += kBlock) {
      const Pair* key_block = keys + key / kBlock * across;
      const Pair* value_block = values + key / kBlock * plain;
      for_strips(rows, key == query,
                 [&](std::int64_t first, std::int64_t strip_rows, std::int64_t columns) {
                   float* strip = scores + first * kBlock;
                   Pair* weight_strip = weights + first * kBlock / 2;
                   multiply<Sum::set>(strip_rows, columns, pairs_of(d),
                                      {queries + first * w / 2, w / 2, 1}, key_block, kBlock, strip,
                                      kBlock);
                   soften_strip(first_keys, query + first, strip_rows, key, columns, bit_scale,
                                strip, {largest + first, total + first, sums + first * w, w},
                                weight_strip);
                   multiply<Sum::add>(strip_rows, w, columns / 2, {weight_strip, kBlock / 2, 1},
                                      value_block, w, sums + first * w, w);
                 });
    }
    for (std::int64_t r = 0; r < count; ++r) {
      store_block(sums + r * w, 1, 1.0F / total[r], layout, out, row + r, h * d);
      log_sums[query + r] = largest[r] / kBitsPerNat + __builtin_logf(total[r]);
    }
  }
}

void bf16_backward_task(const AttentionShape& shape, const Rows& q, const Rows& k, const Rows& v,
                        const FirstKeys& first_keys, const Rows& out, const float* log_sums,
                        const Rows& dout, const Rows& dq, const Rows& dk, const Rows& dv,
                        float* scratch, std::int64_t b, std::int64_t kv_head) {
  const AttentionLayout layout(shape);
  const BackwardScratch s(layout, scratch);
  const std::int64_t d = shape.head_dim;
  const std::int64_t length = shape.sequence;
  const std::int64_t group = shape.heads / shape.kv_heads;
  load_keys(shape, layout, k, v, b * length, kv_head * d, s);
  for (std::int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h)
    for (std::int64_t query = 0; query < length; query += kBlock) {
      const std::int64_t count = rows_from(query, length);
      const std::int64_t rows = (count + kTileRows - 1) / kTileRows * kTileRows;
      const std::int64_t row = b * length + query;
      load_queries(layout, q, out, dout, log_sums + h * length + query, row, h * d, count, s);
      for (std::int64_t key = first_keys.block_at(query); key <= query; key += kBlock) {
        to_queries(layout, shape.scale * kBitsPerNat, first_keys, query, rows, key, s);
        to_keys(layout, rows, key / kBlock, key == query, s);
      }
      store_block(s.dqueries, count, shape.scale, layout, dq, row, h * d);
    }
  for (std::int64_t block = 0; block < layout.key_blocks; ++block) {
    const std::int64_t key = block * kBlock;
    const std::int64_t rows = rows_from(key, length);
    const std::int64_t at = block * layout.plain_floats();
    store_block(s.dkeys + at, rows, shape.scale, layout, dk, b * length + key, kv_head * d);
    store_block(s.dvalues + at, rows, 1.0F, layout, dv, b * length + key, kv_head * d);
  }
}

}  // namespace isthmus::kernels
#pragma GCC pop_options

#else  // no such CPU: attention.cc never asks for it

namespace isthmus::kernels {

void bf16_forward_task(const AttentionShape&, const Rows&, const Rows&, const Rows&,
                       const FirstKeys&, const Rows&, float*, float*, std::int64_t, std::int64_t,
                       std::int64_t, std::int64_t) {
  ISTHMUS_ASSERT(false);
}

void bf16_backward_task(const AttentionShape&, const Rows&, const Rows&, const Rows&,
                        const FirstKeys&, const Rows&, const float*, const Rows&, const Rows&,
                        const Rows&, const Rows&, float*, std::int64_t, std::int64_t) {
  ISTHMUS_ASSERT(false);
}

}  // namespace isthmus::kernels
#endif

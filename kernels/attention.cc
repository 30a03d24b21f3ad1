#include "kernels/attention.h"

#include <algorithm>
#include <cmath>

#include "base/assert.h"
#include "kernels/attention_bf16.h"
#include "kernels/attention_layout.h"
#include "kernels/cpu_features.h"
#include "kernels/elements.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

constexpr std::int64_t kBlock = AttentionLayout::kBlock;
constexpr std::int64_t kStrip = 16;  // rows of a diagonal block that share one column limit
constexpr int kTileRows = 4;
#if HWY_TARGET == HWY_AVX3_DL
constexpr int kTileVectors = 4;  // 16 sums, 4 vectors of b and one of a: of 32 registers
#else
constexpr int kTileVectors = 2;  // 8 sums, of 16 registers
#endif

// A factor of a product: element (row, column) is at data[row * row_stride + column *
// column_stride], so that a transposed one is the same kernel.
struct Factor {
  const float* data;
  std::int64_t row_stride;
  std::int64_t column_stride;
};

enum class Sum { set, add };

// c [4, kVectors vectors] = or += a [4, k] · b [k, kVectors vectors]
template <Sum kSum, int kVectors>
HWY_INLINE void multiply_tile(std::int64_t k, const Factor& a, const float* b,
                              std::int64_t b_stride, float* c, std::int64_t c_stride) {
  const FloatTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<FloatTag> sums[kTileRows][kVectors];
  for (int i = 0; i < kTileRows; ++i)
    for (int j = 0; j < kVectors; ++j)
      sums[i][j] = kSum == Sum::add ? hn::LoadU(d, c + i * c_stride + j * lanes) : hn::Zero(d);
  const float* a0 = a.data;
  const float* a1 = a0 + a.row_stride;
  const float* a2 = a1 + a.row_stride;
  const float* a3 = a2 + a.row_stride;
  for (std::int64_t l = 0; l < k; ++l) {
    hn::Vec<FloatTag> right[kVectors];
    for (int j = 0; j < kVectors; ++j) right[j] = hn::LoadU(d, b + l * b_stride + j * lanes);
    const std::int64_t at = l * a.column_stride;
    const auto left0 = hn::Set(d, a0[at]);
    for (int j = 0; j < kVectors; ++j) sums[0][j] = hn::MulAdd(left0, right[j], sums[0][j]);
    const auto left1 = hn::Set(d, a1[at]);
    for (int j = 0; j < kVectors; ++j) sums[1][j] = hn::MulAdd(left1, right[j], sums[1][j]);
    const auto left2 = hn::Set(d, a2[at]);
    for (int j = 0; j < kVectors; ++j) sums[2][j] = hn::MulAdd(left2, right[j], sums[2][j]);
    const auto left3 = hn::Set(d, a3[at]);
    for (int j = 0; j < kVectors; ++j) sums[3][j] = hn::MulAdd(left3, right[j], sums[3][j]);
  }
  for (int i = 0; i < kTileRows; ++i)
    for (int j = 0; j < kVectors; ++j) hn::StoreU(sums[i][j], d, c + i * c_stride + j * lanes);
}

// c [m, n] = or += a [m, k] · b [k, n]; m a multiple of 4, n of 16.
template <Sum kSum>
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const Factor& a, const float* b,
              std::int64_t b_stride, float* c, std::int64_t c_stride) {
  const FloatTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t column = 0;
  for (; column + kTileVectors * lanes <= n; column += kTileVectors * lanes)
    for (std::int64_t row = 0; row < m; row += kTileRows)
      multiply_tile<kSum, kTileVectors>(
          k, {a.data + row * a.row_stride, a.row_stride, a.column_stride}, b + column, b_stride,
          c + row * c_stride + column, c_stride);
  for (; column < n; column += lanes)
    for (std::int64_t row = 0; row < m; row += kTileRows)
      multiply_tile<kSum, 1>(k, {a.data + row * a.row_stride, a.row_stride, a.column_stride},
                             b + column, b_stride, c + row * c_stride + column, c_stride);
}

// `rows` rows of a head, times `scale`, to f32 [64][width]; what is beyond them becomes zero.
void copy_block(const Rows& from, std::int64_t first_row, std::int64_t column, std::int64_t rows,
                const AttentionLayout& layout, float scale, float* to) {
  with_element(from.dtype, [&](auto element) {
    for (std::int64_t r = 0; r < kBlock; ++r) {
      float* out = to + r * layout.width;
      std::int64_t filled = 0;
      if (r < rows) {
        const auto* in = static_cast<const decltype(element)*>(from.at(first_row + r, column));
        for_lanes(static_cast<std::size_t>(layout.head_dim), [=](auto tag, std::size_t i) {
          hn::StoreU(hn::Mul(load_as_float(tag, in + i), hn::Set(tag, scale)), tag, out + i);
        });
        filled = layout.head_dim;
      }
      for (; filled < layout.width; ++filled) out[filled] = 0.0F;
    }
  });
}

// [64][width] to [head_dim][64].
void transpose_block(const float* from, const AttentionLayout& layout, float* to) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> i32;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto steps = hn::Mul(hn::Iota(i32, 0), hn::Set(i32, static_cast<int>(layout.width)));
  for (std::int64_t i = 0; i < layout.head_dim; ++i)
    for (std::int64_t r = 0; r < kBlock; r += lanes)
      hn::StoreU(hn::GatherIndex(d, from + r * layout.width + i, steps), d, to + i * kBlock + r);
}

// `rows` rows of [64][width], times a factor, to rows of a head.
void store_block(const float* from, std::int64_t rows, float factor, const AttentionLayout& layout,
                 const Rows& to, std::int64_t first_row, std::int64_t column) {
  with_element(to.dtype, [&](auto element) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* in = from + r * layout.width;
      auto* out = static_cast<decltype(element)*>(to.at(first_row + r, column));
      for_lanes(static_cast<std::size_t>(layout.head_dim), [=](auto tag, std::size_t i) {
        store_float(hn::Mul(hn::LoadU(tag, in + i), hn::Set(tag, factor)), tag, out + i);
      });
    }
  });
}

// The online softmax of one row over one block of scores, which become weights: largest and total
// so far, and the row of weighted sums, shrunk when a larger score appears.
HWY_INLINE void soften_row(float* scores, std::int64_t columns, float* largest, float* total,
                           float* sums, std::int64_t width) {
  const FloatTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto wide = hn::Set(d, *largest);
  for (std::int64_t i = 0; i < columns; i += lanes) wide = hn::Max(wide, hn::LoadU(d, scores + i));
  const float now = hn::GetLane(hn::MaxOfLanes(d, wide));
  const auto shift = hn::Set(d, now);
  auto added = hn::Zero(d);
  for (std::int64_t i = 0; i < columns; i += lanes) {
    const auto weight = hn::Exp(d, hn::Sub(hn::LoadU(d, scores + i), shift));
    added = hn::Add(added, weight);
    hn::StoreU(weight, d, scores + i);
  }
  const float shrink = now == *largest ? 1.0F : std::exp(*largest - now);
  *total = *total * shrink + hn::GetLane(hn::SumOfLanes(d, added));
  *largest = now;
  if (shrink == 1.0F) return;
  for (std::int64_t i = 0; i < width; i += lanes)
    hn::StoreU(hn::Mul(hn::LoadU(d, sums + i), hn::Set(d, shrink)), d, sums + i);
}

constexpr float kMasked = -1e30F;  // exp of it, less any score, is 0

// Of a block's keys the row sees [first, end).
HWY_INLINE void mask_row(float* scores, std::int64_t columns, std::int64_t first,
                         std::int64_t end) {
  for (std::int64_t i = 0; i < first && i < columns; ++i) scores[i] = kMasked;
  for (std::int64_t i = end < 0 ? 0 : end; i < columns; ++i) scores[i] = kMasked;
}

// How a block of scores is walked: all rows at once, or, on the diagonal, in strips of 16 rows of
// which each needs only the columns up to its own last.
template <class Strip>
HWY_INLINE void for_strips(std::int64_t rows, bool diagonal, const Strip& strip) {
  if (!diagonal) {
    strip(0, rows, kBlock);
    return;
  }
  for (std::int64_t first = 0; first < rows; first += kStrip)
    strip(first, rows - first < kStrip ? rows - first : kStrip, first + kStrip);
}

// The queries [first_query, end_query) of one head.
void forward_task(const AttentionShape& shape, const Rows& q, const Rows& k, const Rows& v,
                  const FirstKeys& first_keys, const Rows& out, float* log_sums, float* scratch,
                  std::int64_t b, std::int64_t h, std::int64_t first_query,
                  std::int64_t end_query) {
  const AttentionLayout layout(shape);
  const std::int64_t d = shape.head_dim;
  const std::int64_t w = layout.width;
  const std::int64_t key_column = h / (shape.heads / shape.kv_heads) * d;
  const std::int64_t blocks = (end_query + kBlock - 1) / kBlock;
  float* keys = scratch;  // transposed
  float* values = keys + layout.key_blocks * layout.transposed_floats();
  float* queries = values + layout.key_blocks * layout.plain_floats();
  float* sums = queries + layout.plain_floats();
  float* scores = sums + layout.plain_floats();
  float* largest = scores + kBlock * kBlock;
  float* total = largest + kBlock;

  const std::int64_t first_key = b * shape.sequence;
  for (std::int64_t block = first_keys.block_at(first_query) / kBlock; block < blocks; ++block) {
    const std::int64_t key = block * kBlock;
    const std::int64_t rows = end_query - key < kBlock ? end_query - key : kBlock;
    copy_block(k, first_key + key, key_column, rows, layout, 1.0F, sums);
    transpose_block(sums, layout, keys + block * layout.transposed_floats());
    copy_block(v, first_key + key, key_column, rows, layout, 1.0F,
               values + block * layout.plain_floats());
  }

  for (std::int64_t query = first_query; query < end_query; query += kBlock) {
    const std::int64_t count = end_query - query < kBlock ? end_query - query : kBlock;
    const std::int64_t rows = (count + kTileRows - 1) / kTileRows * kTileRows;
    const std::int64_t row = b * shape.sequence + query;
    copy_block(q, row, h * d, count, layout, shape.scale, queries);
    for (std::int64_t i = 0; i < layout.plain_floats(); ++i) sums[i] = 0.0F;
    for (std::int64_t i = 0; i < kBlock; ++i) {
      largest[i] = kMasked;
      total[i] = 0.0F;
    }
    for (std::int64_t key = first_keys.block_at(query); key < query + count; key += kBlock) {
      const float* key_block = keys + key / kBlock * layout.transposed_floats();
      const float* value_block = values + key / kBlock * layout.plain_floats();
      const bool masked = key + kBlock > query + 1;
      for_strips(rows, key == query,
                 [&](std::int64_t first, std::int64_t strip_rows, std::int64_t columns) {
                   float* strip = scores + first * kBlock;
                   multiply<Sum::set>(strip_rows, columns, d, {queries + first * w, w, 1},
                                      key_block, kBlock, strip, kBlock);
                   for (std::int64_t r = 0; r < strip_rows; ++r) {
                     const std::int64_t seen = first_keys.at(query + first + r) - key;
                     if (seen >= columns) {  // the block is before this row's document
                       for (std::int64_t i = 0; i < columns; ++i) strip[r * kBlock + i] = 0.0F;
                       continue;
                     }
                     if (masked || seen > 0)
                       mask_row(strip + r * kBlock, columns, seen, query + first + r + 1 - key);
                     soften_row(strip + r * kBlock, columns, largest + first + r, total + first + r,
                                sums + (first + r) * w, w);
                   }
                   multiply<Sum::add>(strip_rows, w, columns, {strip, kBlock, 1}, value_block, w,
                                      sums + first * w, w);
                 });
    }
    for (std::int64_t r = 0; r < count; ++r) {
      store_block(sums + r * w, 1, 1.0F / total[r], layout, out, row + r, h * d);
      log_sums[query + r] = largest[r] + std::log(total[r]);
    }
  }
}

// Scores become weights p = exp(score - log_sum), and dp becomes ds = p * (dp - delta).
HWY_INLINE void gradient_row(float* scores, float* dscores, std::int64_t columns, float log_sum,
                             float delta) {
  const FloatTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < columns; i += lanes) {
    const auto p = hn::Exp(d, hn::Sub(hn::LoadU(d, scores + i), hn::Set(d, log_sum)));
    const auto dp = hn::Sub(hn::LoadU(d, dscores + i), hn::Set(d, delta));
    hn::StoreU(p, d, scores + i);
    hn::StoreU(hn::Mul(p, dp), d, dscores + i);
  }
}

// Of the block of rows that begins at `first`.
HWY_INLINE std::int64_t rows_from(std::int64_t first, std::int64_t length) {
  return length - first < kBlock ? length - first : kBlock;
}

// Where a backward task has what: of all keys, by block; of one block of queries; of one block of
// queries and one of keys.
struct BackwardScratch {
  BackwardScratch(const AttentionLayout& layout, float* begin)
      : keys_t(begin),
        values_t(keys_t + layout.key_blocks * layout.transposed_floats()),
        keys(values_t + layout.key_blocks * layout.transposed_floats()),
        dkeys(keys + layout.key_blocks * layout.plain_floats()),
        dvalues(dkeys + layout.key_blocks * layout.plain_floats()),
        queries(dvalues + layout.key_blocks * layout.plain_floats()),
        douts(queries + layout.plain_floats()),
        dqueries(douts + layout.plain_floats()),
        staging(dqueries + layout.plain_floats()),
        scores(staging + layout.plain_floats()),
        dscores(scores + kBlock * kBlock),
        delta(dscores + kBlock * kBlock),
        log_sum(delta + kBlock) {}

  float *keys_t, *values_t, *keys, *dkeys, *dvalues;
  float *queries, *douts, *dqueries, *staging;
  float *scores, *dscores;
  float *delta, *log_sum;  // of the queries
};

void load_keys(const AttentionShape& shape, const AttentionLayout& layout, const Rows& k,
               const Rows& v, std::int64_t first_row, std::int64_t column,
               const BackwardScratch& s) {
  const std::int64_t plain = layout.plain_floats();
  const std::int64_t transposed = layout.transposed_floats();
  for (std::int64_t block = 0; block < layout.key_blocks; ++block) {
    const std::int64_t key = block * kBlock;
    const std::int64_t rows = rows_from(key, shape.sequence);
    copy_block(k, first_row + key, column, rows, layout, 1.0F, s.keys + block * plain);
    transpose_block(s.keys + block * plain, layout, s.keys_t + block * transposed);
    copy_block(v, first_row + key, column, rows, layout, 1.0F, s.staging);
    transpose_block(s.staging, layout, s.values_t + block * transposed);
  }
  for (std::int64_t i = 0; i < 2 * layout.key_blocks * plain; ++i) s.dkeys[i] = 0.0F;
}

// `count` queries with what their gradient needs: delta = dout · out, and `log_sums`.
void load_queries(const AttentionShape& shape, const AttentionLayout& layout, const Rows& q,
                  const Rows& out, const Rows& dout, const float* log_sums, std::int64_t row,
                  std::int64_t column, std::int64_t count, const BackwardScratch& s) {
  const std::int64_t w = layout.width;
  copy_block(q, row, column, count, layout, shape.scale, s.queries);
  copy_block(dout, row, column, count, layout, 1.0F, s.douts);
  copy_block(out, row, column, count, layout, 1.0F, s.staging);
  for (std::int64_t r = 0; r < kBlock; ++r) {
    const float* left = s.douts + r * w;
    const float* right = s.staging + r * w;
    s.delta[r] = sum_over(static_cast<std::size_t>(w), [=](auto tag, std::size_t i) {
      return hn::Mul(hn::LoadU(tag, left + i), hn::LoadU(tag, right + i));
    });
    s.log_sum[r] = r < count ? log_sums[r] : 0.0F;
  }
  for (std::int64_t i = 0; i < layout.plain_floats(); ++i) s.dqueries[i] = 0.0F;
}

// scores = p and dscores = ds of the block of keys from `key` on, and dqueries += ds k.
void to_queries(const AttentionLayout& layout, const FirstKeys& first_keys, std::int64_t query,
                std::int64_t rows, std::int64_t key, const BackwardScratch& s) {
  const bool diagonal = key == query;
  const std::int64_t block = key / kBlock;
  const std::int64_t d = layout.head_dim;
  const std::int64_t w = layout.width;
  const float* keys_t = s.keys_t + block * layout.transposed_floats();
  const float* values_t = s.values_t + block * layout.transposed_floats();
  const float* keys = s.keys + block * layout.plain_floats();
  for_strips(rows, diagonal,
             [&](std::int64_t first, std::int64_t strip_rows, std::int64_t columns) {
               float* strip = s.scores + first * kBlock;
               float* dstrip = s.dscores + first * kBlock;
               multiply<Sum::set>(strip_rows, columns, d, {s.queries + first * w, w, 1}, keys_t,
                                  kBlock, strip, kBlock);
               multiply<Sum::set>(strip_rows, columns, d, {s.douts + first * w, w, 1}, values_t,
                                  kBlock, dstrip, kBlock);
               for (std::int64_t r = 0; r < strip_rows; ++r) {
                 const std::int64_t seen = first_keys.at(query + first + r) - key;
                 if (diagonal || seen > 0)
                   mask_row(strip + r * kBlock, columns, seen, query + first + r + 1 - key);
                 gradient_row(strip + r * kBlock, dstrip + r * kBlock, columns,
                              s.log_sum[first + r], s.delta[first + r]);
               }
               multiply<Sum::add>(strip_rows, w, columns, {dstrip, kBlock, 1}, keys, w,
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
    const std::int64_t corner = from * kBlock + first;
    multiply<Sum::add>(keys_here, w, rows - from, {s.scores + corner, 1, kBlock},
                       s.douts + from * w, w, dvalues + first * w, w);
    multiply<Sum::add>(keys_here, w, rows - from, {s.dscores + corner, 1, kBlock},
                       s.queries + from * w, w, dkeys + first * w, w);
  }
}

// All queries of the heads that share one kv head, so that dk and dv have one writer.
//
//   p = exp(scale q·k - log_sum)    dv += pᵀ dout         delta = dout · out
//   dp = dout · vᵀ                  ds = p (dp - delta)   dq = scale ds k     dk += scale dsᵀ q
void backward_task(const AttentionShape& shape, const Rows& q, const Rows& k, const Rows& v,
                   const FirstKeys& first_keys, const Rows& out, const float* log_sums,
                   const Rows& dout, const Rows& dq, const Rows& dk, const Rows& dv, float* scratch,
                   std::int64_t b, std::int64_t kv_head) {
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
      load_queries(shape, layout, q, out, dout, log_sums + h * length + query, row, h * d, count,
                   s);
      for (std::int64_t key = first_keys.block_at(query); key <= query; key += kBlock) {
        to_queries(layout, first_keys, query, rows, key, s);
        to_keys(layout, rows, key / kBlock, key == query, s);
      }
      store_block(s.dqueries, count, shape.scale, layout, dq, row, h * d);
    }
  for (std::int64_t block = 0; block < layout.key_blocks; ++block) {
    const std::int64_t key = block * kBlock;
    const std::int64_t rows = rows_from(key, length);
    const std::int64_t at = block * layout.plain_floats();
    store_block(s.dkeys + at, rows, 1.0F, layout, dk, b * length + key, kv_head * d);
    store_block(s.dvalues + at, rows, 1.0F, layout, dv, b * length + key, kv_head * d);
  }
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(forward_task);
HWY_EXPORT(backward_task);

namespace {

constexpr std::int64_t kQueriesPerTask = 1024;  // keys are copied again for each task

void check(const AttentionShape& shape, const Rows& q, const Rows& k, const Rows& v,
           std::span<const std::int32_t> first_keys, const Rows& out, std::size_t log_sums) {
  ISTHMUS_ASSERT(shape.batch > 0 && shape.sequence > 0 && shape.head_dim > 0 &&
                 shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0);
  ISTHMUS_ASSERT(q.rows == shape.batch * shape.sequence &&
                 q.columns == shape.heads * shape.head_dim && q.same_shape(out));
  ISTHMUS_ASSERT(k.rows == shape.batch * shape.sequence &&
                 k.columns == shape.kv_heads * shape.head_dim && k.same_shape(v));
  ISTHMUS_ASSERT(q.dtype == k.dtype && q.dtype == v.dtype && q.dtype == out.dtype);
  ISTHMUS_ASSERT(static_cast<std::int64_t>(log_sums) == shape.batch * shape.heads * shape.sequence);
  if (first_keys.empty()) return;
  ISTHMUS_ASSERT(static_cast<std::int64_t>(first_keys.size()) == shape.batch * shape.sequence);
  for (std::size_t i = 0; i < first_keys.size(); ++i) {
    const auto query = static_cast<std::int64_t>(i) % shape.sequence;
    ISTHMUS_ASSERT(first_keys[i] <= query && first_keys[i] >= (query == 0 ? 0 : first_keys[i - 1]));
  }
}

FirstKeys of_item(std::span<const std::int32_t> first_keys, const AttentionShape& shape,
                  std::int64_t b) {
  return {first_keys.empty() ? nullptr : first_keys.data() + b * shape.sequence,
          shape.sequence - 1};
}

float* scratch_of(std::span<std::byte> scratch, const AttentionShape& shape, std::size_t worker) {
  return reinterpret_cast<float*>(scratch.data() + worker * attention_scratch_bytes(shape, 1));
}

}  // namespace

bool bf16_attention_is_native() { return bf16_dot_products_are_fast(); }

std::size_t attention_scratch_bytes(const AttentionShape& shape, std::size_t workers) {
  const auto bytes = static_cast<std::size_t>(AttentionLayout(shape).floats()) * sizeof(float);
  return workers * ((bytes + 63) / 64 * 64);
}

void attention_forward(ThreadPool& pool, const AttentionShape& shape, const Rows& q, const Rows& k,
                       const Rows& v, std::span<const std::int32_t> first_keys, const Rows& out,
                       std::span<float> log_sums, std::span<std::byte> scratch, bool native_bf16) {
  check(shape, q, k, v, first_keys, out, log_sums.size());
  ISTHMUS_ASSERT(scratch.size() >= attention_scratch_bytes(shape, pool.workers()));
  const auto run_task = native_bf16 && q.dtype == DType::bf16 ? &bf16_forward_task
                                                              : &HWY_DYNAMIC_DISPATCH(forward_task);
  const std::int64_t pieces = (shape.sequence + kQueriesPerTask - 1) / kQueriesPerTask;
  pool.parallel_for(
      static_cast<std::size_t>(shape.batch * shape.heads * pieces),
      [&](std::size_t task, std::size_t worker) {
        const std::int64_t head = static_cast<std::int64_t>(task) / pieces;
        const std::int64_t first = static_cast<std::int64_t>(task) % pieces * kQueriesPerTask;
        const std::int64_t b = head / shape.heads;
        run_task(shape, q, k, v, of_item(first_keys, shape, b), out,
                 log_sums.data() + head * shape.sequence, scratch_of(scratch, shape, worker), b,
                 head % shape.heads, first, std::min(shape.sequence, first + kQueriesPerTask));
      });
}

void attention_backward(ThreadPool& pool, const AttentionShape& shape, const Rows& q, const Rows& k,
                        const Rows& v, std::span<const std::int32_t> first_keys, const Rows& out,
                        std::span<const float> log_sums, const Rows& dout, const Rows& dq,
                        const Rows& dk, const Rows& dv, std::span<std::byte> scratch,
                        bool native_bf16) {
  check(shape, q, k, v, first_keys, out, log_sums.size());
  ISTHMUS_ASSERT(q.same_shape(dout) && q.same_shape(dq) && k.same_shape(dk) && k.same_shape(dv));
  ISTHMUS_ASSERT(scratch.size() >= attention_scratch_bytes(shape, pool.workers()));
  bool all_bf16 = true;
  for (const Rows* rows : {&q, &dout, &dq, &dk, &dv}) all_bf16 &= rows->dtype == DType::bf16;
  const auto run_task =
      native_bf16 && all_bf16 ? &bf16_backward_task : &HWY_DYNAMIC_DISPATCH(backward_task);
  pool.parallel_for(static_cast<std::size_t>(shape.batch * shape.kv_heads),
                    [&](std::size_t task, std::size_t worker) {
                      const std::int64_t b = static_cast<std::int64_t>(task) / shape.kv_heads;
                      run_task(shape, q, k, v, of_item(first_keys, shape, b), out,
                               log_sums.data() + b * shape.heads * shape.sequence, dout, dq, dk, dv,
                               scratch_of(scratch, shape, worker), b,
                               static_cast<std::int64_t>(task) % shape.kv_heads);
                    });
}

}  // namespace isthmus::kernels
#endif

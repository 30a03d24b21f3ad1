#include "kernels/attention.h"

#include <algorithm>
#include <cmath>

#include "base/assert.h"
#include "kernels/attention_bf16.h"
#include "kernels/attention_layout.h"
#include "kernels/cpu_features.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/attention_blocks-inl.h"
#include "kernels/attention_products-inl.h"
#include "kernels/dropout-inl.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

constexpr std::int64_t kStrip = 16;  // rows of a diagonal block that share one column limit

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
    const auto weight = exponential(d, hn::Sub(hn::LoadU(d, scores + i), shift));
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

// The dropout of a query's weights for the block of keys from `key` on.
HWY_INLINE void weight_factors(const DropoutWords& dropout, std::int64_t head, std::int64_t query,
                               std::int64_t key, float* factors) {
  make_dropout_factors(dropout, static_cast<std::uint32_t>(key / kBlock),
                       static_cast<std::uint32_t>(query), static_cast<std::uint32_t>(head),
                       factors);
}

HWY_NOINLINE void drop_weights(const DropoutWords& dropout, std::int64_t head, std::int64_t query,
                               std::int64_t key, float* weights, std::int64_t columns) {
  const FloatTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  HWY_ALIGN float factors[kMaskBlock];
  weight_factors(dropout, head, query, key, factors);
  for (std::int64_t i = 0; i < columns; i += lanes)
    hn::StoreU(hn::Mul(hn::LoadU(d, weights + i), hn::LoadU(d, factors + i)), d, weights + i);
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
                  const AttentionMask& mask, const Rows& out, float* log_sums, float* scratch,
                  std::int64_t b, std::int64_t h, std::int64_t first_query,
                  std::int64_t end_query) {
  const AttentionLayout layout(shape);
  const std::int64_t d = shape.head_dim;
  const std::int64_t w = layout.width;
  const std::int64_t key_column = h / (shape.heads / shape.kv_heads) * d;
  const std::int64_t end_key = mask.end(end_query - 1);
  float* keys = scratch;  // transposed
  float* values = keys + layout.key_blocks * layout.transposed_floats();
  float* queries = values + layout.key_blocks * layout.plain_floats();
  float* sums = queries + layout.plain_floats();
  float* scores = sums + layout.plain_floats();
  float* largest = scores + kBlock * kBlock;
  float* total = largest + kBlock;
  std::int64_t ends[kBlock];  // of the keys that the queries of a block see

  const std::int64_t first_key = b * shape.sequence;
  for (std::int64_t key = mask.first_keys.block_at(first_query); key < end_key; key += kBlock) {
    const std::int64_t block = key / kBlock;
    const std::int64_t rows = rows_from(key, end_key);
    transpose_block(k, first_key + key, key_column, rows, layout,
                    keys + block * layout.transposed_floats());
    copy_block(v, first_key + key, key_column, rows, layout, 1.0F,
               values + block * layout.plain_floats());
  }

  for (std::int64_t query = first_query; query < end_query; query += kBlock) {
    const std::int64_t count = rows_from(query, end_query);
    const std::int64_t rows = (count + kTileRows - 1) / kTileRows * kTileRows;
    const std::int64_t row = b * shape.sequence + query;
    copy_block(q, row, h * d, count, layout, shape.scale, queries);
    for (std::int64_t i = 0; i < layout.plain_floats(); ++i) sums[i] = 0.0F;
    for (std::int64_t i = 0; i < kBlock; ++i) {
      largest[i] = kMasked;
      total[i] = 0.0F;
    }
    mask.find_ends(query, rows, ends);
    for (std::int64_t key = mask.first_keys.block_at(query); key < ends[count - 1]; key += kBlock) {
      const float* key_block = keys + key / kBlock * layout.transposed_floats();
      const float* value_block = values + key / kBlock * layout.plain_floats();
      for_strips(rows, mask.causal && key == query,
                 [&](std::int64_t first, std::int64_t strip_rows, std::int64_t columns) {
                   float* strip = scores + first * kBlock;
                   multiply<Sum::set>(strip_rows, columns, d, {queries + first * w, w, 1},
                                      key_block, kBlock, strip, kBlock);
                   for (std::int64_t r = 0; r < strip_rows; ++r) {
                     const std::int64_t seen = mask.first_keys.at(query + first + r) - key;
                     const std::int64_t end = ends[first + r] - key;
                     if (seen >= columns || end <= 0) {  // none of the block is of its document
                       for (std::int64_t i = 0; i < columns; ++i) strip[r * kBlock + i] = 0.0F;
                       continue;
                     }
                     if (seen > 0 || end < columns)
                       mask_row(strip + r * kBlock, columns, seen, end);
                     soften_row(strip + r * kBlock, columns, largest + first + r, total + first + r,
                                sums + (first + r) * w, w);
                     if (mask.dropout.drops())
                       drop_weights(mask.dropout, h, query + first + r, key, strip + r * kBlock,
                                    columns);
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
    const auto p = exponential(d, hn::Sub(hn::LoadU(d, scores + i), hn::Set(d, log_sum)));
    const auto dp = hn::Sub(hn::LoadU(d, dscores + i), hn::Set(d, delta));
    hn::StoreU(p, d, scores + i);
    hn::StoreU(hn::Mul(p, dp), d, dscores + i);
  }
}

// The same where m, the dropout, lies between p and what is multiplied by it: scores become p m,
// and dp becomes p (m dp - delta), as delta = dout · out is the sum of p m dp already.
HWY_NOINLINE void dropped_gradient_row(const DropoutWords& dropout, std::int64_t head,
                                       std::int64_t query, std::int64_t key, float* scores,
                                       float* dscores, std::int64_t columns, float log_sum,
                                       float delta) {
  const FloatTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  HWY_ALIGN float factors[kMaskBlock];
  weight_factors(dropout, head, query, key, factors);
  for (std::int64_t i = 0; i < columns; i += lanes) {
    const auto p = exponential(d, hn::Sub(hn::LoadU(d, scores + i), hn::Set(d, log_sum)));
    const auto m = hn::LoadU(d, factors + i);
    const auto dp = hn::MulSub(m, hn::LoadU(d, dscores + i), hn::Set(d, delta));
    hn::StoreU(hn::Mul(p, m), d, scores + i);
    hn::StoreU(hn::Mul(p, dp), d, dscores + i);
  }
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
    transpose_block(k, first_row + key, column, rows, layout, s.keys_t + block * transposed);
    transpose_block(v, first_row + key, column, rows, layout, s.values_t + block * transposed);
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

// scores = p (p m with dropout) and dscores = ds of the block of keys from `key` on, and dqueries
// += ds k. `ends`: of the keys that these queries of head `h` see.
void to_queries(const AttentionLayout& layout, const AttentionMask& mask, std::int64_t h,
                std::int64_t query, const std::int64_t* ends, std::int64_t rows, std::int64_t key,
                const BackwardScratch& s) {
  const std::int64_t block = key / kBlock;
  const std::int64_t d = layout.head_dim;
  const std::int64_t w = layout.width;
  const float* keys_t = s.keys_t + block * layout.transposed_floats();
  const float* values_t = s.values_t + block * layout.transposed_floats();
  const float* keys = s.keys + block * layout.plain_floats();
  for_strips(rows, mask.causal && key == query,
             [&](std::int64_t first, std::int64_t strip_rows, std::int64_t columns) {
               float* strip = s.scores + first * kBlock;
               float* dstrip = s.dscores + first * kBlock;
               multiply<Sum::set>(strip_rows, columns, d, {s.queries + first * w, w, 1}, keys_t,
                                  kBlock, strip, kBlock);
               multiply<Sum::set>(strip_rows, columns, d, {s.douts + first * w, w, 1}, values_t,
                                  kBlock, dstrip, kBlock);
               for (std::int64_t r = 0; r < strip_rows; ++r) {
                 const std::int64_t seen = mask.first_keys.at(query + first + r) - key;
                 const std::int64_t end = ends[first + r] - key;
                 if (seen > 0 || end < columns) mask_row(strip + r * kBlock, columns, seen, end);
                 if (mask.dropout.drops())
                   dropped_gradient_row(mask.dropout, h, query + first + r, key, strip + r * kBlock,
                                        dstrip + r * kBlock, columns, s.log_sum[first + r],
                                        s.delta[first + r]);
                 else
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
//
// With dropout m: dv += (p m)ᵀ dout, and ds = p (m dp - delta).
void backward_task(const AttentionShape& shape, const Rows& q, const Rows& k, const Rows& v,
                   const AttentionMask& mask, const Rows& out, const float* log_sums,
                   const Rows& dout, const Rows& dq, const Rows& dk, const Rows& dv, float* scratch,
                   std::int64_t b, std::int64_t kv_head) {
  const AttentionLayout layout(shape);
  const BackwardScratch s(layout, scratch);
  const std::int64_t d = shape.head_dim;
  const std::int64_t length = shape.sequence;
  const std::int64_t group = shape.heads / shape.kv_heads;
  std::int64_t ends[kBlock];
  load_keys(shape, layout, k, v, b * length, kv_head * d, s);
  for (std::int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h)
    for (std::int64_t query = 0; query < length; query += kBlock) {
      const std::int64_t count = rows_from(query, length);
      const std::int64_t rows = (count + kTileRows - 1) / kTileRows * kTileRows;
      const std::int64_t row = b * length + query;
      load_queries(shape, layout, q, out, dout, log_sums + h * length + query, row, h * d, count,
                   s);
      mask.find_ends(query, rows, ends);
      for (std::int64_t key = mask.first_keys.block_at(query); key < ends[count - 1];
           key += kBlock) {
        to_queries(layout, mask, h, query, ends, rows, key, s);
        to_keys(layout, rows, key / kBlock, mask.causal && key == query, s);
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

bool drops(const DropoutMask* dropout) { return dropout != nullptr && dropout->rate != 0; }

void check(const AttentionShape& shape, const Rows& q, const Rows& k, const Rows& v,
           std::span<const std::int32_t> first_keys, const DropoutMask* dropout, const Rows& out,
           std::size_t log_sums) {
  ISTHMUS_ASSERT(shape.batch > 0 && shape.sequence > 0 && shape.head_dim > 0 &&
                 shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0 && shape.scale > 0);
  ISTHMUS_ASSERT(q.rows == shape.batch * shape.sequence &&
                 q.columns == shape.heads * shape.head_dim && q.same_shape(out));
  ISTHMUS_ASSERT(k.rows == shape.batch * shape.sequence &&
                 k.columns == shape.kv_heads * shape.head_dim && k.same_shape(v));
  ISTHMUS_ASSERT(q.dtype == k.dtype && q.dtype == v.dtype && q.dtype == out.dtype);
  ISTHMUS_ASSERT(static_cast<std::int64_t>(log_sums) == shape.batch * shape.heads * shape.sequence);
  if (drops(dropout))
    ISTHMUS_ASSERT(static_cast<std::int64_t>(dropout->keys.size()) == 2 * shape.batch);
  if (first_keys.empty()) return;
  ISTHMUS_ASSERT(static_cast<std::int64_t>(first_keys.size()) == shape.batch * shape.sequence);
  for (std::size_t i = 0; i < first_keys.size(); ++i) {
    const auto query = static_cast<std::int64_t>(i) % shape.sequence;
    const std::int32_t before = query == 0 ? 0 : first_keys[i - 1];
    ISTHMUS_ASSERT(first_keys[i] <= query && first_keys[i] >= before);
    // What sees both ways must know where a document ends: where the next one truly begins.
    ISTHMUS_ASSERT(shape.causal || first_keys[i] == before || first_keys[i] == query);
  }
}

AttentionMask mask_of(std::span<const std::int32_t> first_keys, const DropoutMask* dropout,
                      const AttentionShape& shape, std::int64_t b) {
  const auto* of_item = first_keys.empty() ? nullptr : first_keys.data() + b * shape.sequence;
  return {.first_keys = {of_item, shape.sequence - 1},
          .causal = shape.causal,
          .dropout = drops(dropout) ? DropoutWords(*dropout, b) : DropoutWords()};
}

// The native tasks are causal and drop nothing.
bool native_tasks_can(const AttentionShape& shape, const DropoutMask* dropout) {
  return shape.causal && !drops(dropout);
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
                       const Rows& v, std::span<const std::int32_t> first_keys,
                       const DropoutMask* dropout, const Rows& out, std::span<float> log_sums,
                       std::span<std::byte> scratch, bool native_bf16) {
  check(shape, q, k, v, first_keys, dropout, out, log_sums.size());
  ISTHMUS_ASSERT(scratch.size() >= attention_scratch_bytes(shape, pool.workers()));
  const bool native = native_bf16 && q.dtype == DType::bf16 && native_tasks_can(shape, dropout);
  const std::int64_t pieces = (shape.sequence + kQueriesPerTask - 1) / kQueriesPerTask;
  pool.parallel_for(
      static_cast<std::size_t>(shape.batch * shape.heads * pieces),
      [&](std::size_t task, std::size_t worker) {
        const std::int64_t head = static_cast<std::int64_t>(task) / pieces;
        const std::int64_t first = static_cast<std::int64_t>(task) % pieces * kQueriesPerTask;
        const std::int64_t b = head / shape.heads;
        const std::int64_t h = head % shape.heads;
        const std::int64_t end = std::min(shape.sequence, first + kQueriesPerTask);
        const AttentionMask mask = mask_of(first_keys, dropout, shape, b);
        float* sums = log_sums.data() + head * shape.sequence;
        float* floats = scratch_of(scratch, shape, worker);
        if (native) {
          bf16_forward_task(shape, q, k, v, mask.first_keys, out, sums, floats, b, h, first, end);
        } else {
          HWY_DYNAMIC_DISPATCH(forward_task)
          (shape, q, k, v, mask, out, sums, floats, b, h, first, end);
        }
      });
}

void attention_backward(ThreadPool& pool, const AttentionShape& shape, const Rows& q, const Rows& k,
                        const Rows& v, std::span<const std::int32_t> first_keys,
                        const DropoutMask* dropout, const Rows& out,
                        std::span<const float> log_sums, const Rows& dout, const Rows& dq,
                        const Rows& dk, const Rows& dv, std::span<std::byte> scratch,
                        bool native_bf16) {
  check(shape, q, k, v, first_keys, dropout, out, log_sums.size());
  ISTHMUS_ASSERT(q.same_shape(dout) && q.same_shape(dq) && k.same_shape(dk) && k.same_shape(dv));
  ISTHMUS_ASSERT(scratch.size() >= attention_scratch_bytes(shape, pool.workers()));
  bool native = native_bf16 && native_tasks_can(shape, dropout);
  for (const Rows* rows : {&q, &dout, &dq, &dk, &dv}) native &= rows->dtype == DType::bf16;
  pool.parallel_for(static_cast<std::size_t>(shape.batch * shape.kv_heads),
                    [&](std::size_t task, std::size_t worker) {
                      const std::int64_t b = static_cast<std::int64_t>(task) / shape.kv_heads;
                      const std::int64_t kv_head = static_cast<std::int64_t>(task) % shape.kv_heads;
                      const AttentionMask mask = mask_of(first_keys, dropout, shape, b);
                      const float* sums = log_sums.data() + b * shape.heads * shape.sequence;
                      float* floats = scratch_of(scratch, shape, worker);
                      if (native) {
                        bf16_backward_task(shape, q, k, v, mask.first_keys, out, sums, dout, dq, dk,
                                           dv, floats, b, kv_head);
                      } else {
                        HWY_DYNAMIC_DISPATCH(backward_task)
                        (shape, q, k, v, mask, out, sums, dout, dq, dk, dv, floats, b, kv_head);
                      }
                    });
}

}  // namespace isthmus::kernels
#endif

// Grouped-query attention, causal or not, blocked with an online softmax (FlashAttention-2: Dao
// 2023): no [sequence, sequence] matrix is ever stored. Forward keeps the log of each row's softmax
// sum, backward recomputes from it. Any sequence length and head size; arithmetic f32, except that
// bf16 inputs may multiply as bf16 pairs summed in f32. Results do not depend on the number of
// threads.
//
//            keys
//          ┌───────────────┐   query t sees keys 0 … t; blocks wholly above the diagonal are
//  queries │███▒           │   skipped, ▒ are masked.
//          │███████▒       │
//          │███████████▒   │
//          └───────────────┘
//
// Where a sequence holds several documents, each may be given a view of its own tokens alone: query
// t then sees keys from first_keys[t], where its document begins, to t, and blocks wholly before
// are skipped too.
//
//            keys
//          ┌───────────────┐
//  queries │█▒             │
//          │██▒            │
//          │  ▒█▒          │
//          │   ███▒        │
//          └───────────────┘
//
// Not causal, a query sees all keys of its sequence, or of its document: from first_keys[t] to
// where a later query's first key is above that, or the sequence ends. What pads a sequence is a
// document of its own, that nobody else sees.
//
//            keys
//          ┌───────────────┐
//  queries │███            │
//          │███            │
//          │   █████       │
//          │        ▒▒▒▒▒▒▒│   ▒ padding
//          └───────────────┘
//
// Dropout multiplies the weights p after the softmax: out = (p m) v, where m is the mask of
// kernels/dropout.h with the query as its row, the key as its element, both counted in their
// sequence, and the query's head as its head. log_sums are those of the weights undropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/dropout.h"
#include "kernels/rows.h"

namespace isthmus::kernels {

struct AttentionShape {
  std::int64_t batch = 1;
  std::int64_t sequence = 1;  // queries, and keys, of each batch item
  std::int64_t heads = 1;     // a multiple of kv_heads: query head h reads kv head h / group
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 1;
  float scale = 1.0F;  // of the scores, usually 1 / sqrt(head_dim)
  bool causal = true;
};

// Whether bf16 inputs are multiplied as such: the CPU has AVX512_BF16 and is faster with it.
bool bf16_attention_is_native();

// Bytes of scratch, aligned to 64, that forward and backward need with this many workers.
std::size_t attention_scratch_bytes(const AttentionShape& shape, std::size_t workers);

// q, out [batch * sequence, heads * head_dim]; k, v [batch * sequence, kv_heads * head_dim]; all of
// one dtype; rows may be strided, so q, k and v can lie side by side in one
// matrix. `native_bf16` is given by tests alone. log_sums [batch, heads, sequence]: log of the sum
// of exp(scale * q·k), kept for backward. first_keys [batch, sequence], or none for 0 everywhere:
// in the sequence, never after the query, and never less than the one before; if not causal, of
// each document its own first token. `dropout`: a key for each batch item, or nullptr for none.
void attention_forward(ThreadPool& pool, const AttentionShape& shape, const Rows& q, const Rows& k,
                       const Rows& v, std::span<const std::int32_t> first_keys,
                       const DropoutMask* dropout, const Rows& out, std::span<float> log_sums,
                       std::span<std::byte> scratch, bool native_bf16 = bf16_attention_is_native());

// dq, dk, dv are set; they and dout may be of other dtypes.
void attention_backward(ThreadPool& pool, const AttentionShape& shape, const Rows& q, const Rows& k,
                        const Rows& v, std::span<const std::int32_t> first_keys,
                        const DropoutMask* dropout, const Rows& out,
                        std::span<const float> log_sums, const Rows& dout, const Rows& dq,
                        const Rows& dk, const Rows& dv, std::span<std::byte> scratch,
                        bool native_bf16 = bf16_attention_is_native());

}  // namespace isthmus::kernels

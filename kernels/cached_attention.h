// Attention of new tokens over what is kept of their texts: the keys and values of all tokens
// before them, so that no token is computed twice (a KV cache). Each row is one new token, at any
// position of any of the texts; its result depends on that row and its text alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/rows.h"

namespace isthmus::kernels {

inline constexpr std::int32_t kNoText = -1;  // a row that is left out

struct CachedAttentionShape {
  std::int64_t length = 1;  // positions that are kept of each text
  std::int64_t heads = 1;   // a multiple of kv_heads: query head h reads kv head h / group
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 1;
  float scale = 1.0F;  // of the scores, usually 1 / sqrt(head_dim)
};

// Bytes of scratch, aligned to 64, that a call needs with this many workers.
std::size_t cached_attention_scratch_bytes(const CachedAttentionShape& shape, std::size_t workers);

// q, out [rows, heads * head_dim]; k, v [rows, kv_heads * head_dim]; all of one dtype. keys, values
// [texts * kv_heads * length, head_dim], of that dtype: k and v of each row are put at its text and
// position, and then each row sees positions 0 to its own. texts, positions [rows]; rows of one
// text have positions that follow each other, the first one that of the tokens which are kept. The
// out of a row of kNoText is not written.
void cached_attention(ThreadPool& pool, const CachedAttentionShape& shape, const Rows& q,
                      const Rows& k, const Rows& v, std::span<const std::int32_t> texts,
                      std::span<const std::int32_t> positions, const Rows& keys, const Rows& values,
                      const Rows& out, std::span<std::byte> scratch);

}  // namespace isthmus::kernels

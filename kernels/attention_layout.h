// AttentionLayout: how a worker's scratch is cut for one task; FirstKeys and AttentionMask: which
// keys its queries see, and which weights are dropped. Private to attention.cc and
// attention_bf16.cc.
//
// Inputs are copied to f32 and padded, so that the inner products see one shape whatever the head
// size and dtype: blocks of 64 queries or keys, heads padded to a multiple of 16 with zeros.
//
//   transposed block   [head_dim][64]   element i of 64 keys side by side
//   plain block        [64][width]      64 rows
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/dropout_words.h"

namespace isthmus::kernels {

struct AttentionLayout {
  static constexpr std::int64_t kBlock = 64;

  explicit AttentionLayout(const AttentionShape& shape)
      : head_dim(shape.head_dim),
        width((shape.head_dim + 15) / 16 * 16),
        key_blocks((shape.sequence + kBlock - 1) / kBlock) {}

  std::int64_t transposed_floats() const { return head_dim * kBlock; }
  std::int64_t plain_floats() const { return width * kBlock; }
  // Forward keeps two of the whole sequence, backward five; both a few blocks besides.
  std::int64_t floats() const {
    return key_blocks * (2 * transposed_floats() + 3 * plain_floats()) + 4 * plain_floats() +
           4 * kBlock * kBlock + 2 * kBlock;
  }

  std::int64_t head_dim;
  std::int64_t width;
  std::int64_t key_blocks;  // of the whole sequence
};

// Of one batch item: where each query's keys begin.
struct FirstKeys {
  const std::int32_t* of = nullptr;  // [sequence], never falling; none: at 0
  std::int64_t last = 0;             // the last query; rows of a block beyond it are as it is

  std::int64_t at(std::int64_t query) const {
    return of == nullptr ? 0 : of[query < last ? query : last];
  }
  // The first block of keys that any query from this one on sees.
  std::int64_t block_at(std::int64_t query) const {
    return at(query) / AttentionLayout::kBlock * AttentionLayout::kBlock;
  }
};

// Of one batch item. A query sees keys from first_keys.at(query) to before end(query).
struct AttentionMask {
  FirstKeys first_keys;
  bool causal = true;
  DropoutWords dropout;

  // Not causal: where the query's document ends, which is as far to look for as it is long.
  std::int64_t end(std::int64_t query) const {
    if (causal) return query + 1;
    if (first_keys.of == nullptr || query > first_keys.last) return first_keys.last + 1;
    std::int64_t after = query + 1;
    while (after <= first_keys.last && first_keys.of[after] == first_keys.of[query]) ++after;
    return after;
  }
  // end() of `count` queries, from the last, which alone looks.
  void find_ends(std::int64_t query, std::int64_t count, std::int64_t* ends) const {
    ends[count - 1] = end(query + count - 1);
    for (std::int64_t i = count - 2; i >= 0; --i) {
      const bool together = first_keys.at(query + i) == first_keys.at(query + i + 1);
      ends[i] = !causal && together ? ends[i + 1] : query + i + 1;
    }
  }
};

}  // namespace isthmus::kernels

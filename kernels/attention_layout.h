// AttentionLayout: how a worker's scratch is cut for one task, and FirstKeys, which keys its
// queries see. Private to attention.cc and attention_bf16.cc.
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

}  // namespace isthmus::kernels

// Dropout (Srivastava et al. 2014): what is dropped becomes 0, what stays is multiplied by
// 1 / (1 - rate). The mask is a function of the sequence's key, the stream, the row and the
// element, so that it can be made again in backward, and depends on neither the batch, the number
// of threads, nor the instruction set.
//
//   element i of a row:   counter = {i / 64 * 16 + i % 16, row, stream, head}
//                         word = philox4x32(counter, {low, high})[i % 64 / 16]     base/random.h
//                         dropped where word < floor(rate * 2^32)
//
// `row` is the row's position in its sequence; `head` is 0 but for the weights of attention. So 16
// counters make 64 neighbouring elements, by vectors of any length.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/rows.h"

namespace isthmus::kernels {

struct DropoutMask {
  float rate = 0;                      // in [0, 1); 0 drops nothing, and needs no keys
  std::uint32_t stream = 0;            // of the layer, and of the place in it
  std::span<const std::int32_t> keys;  // two halves per sequence, the low one first
};

// x, y [batch * sequence, columns], of any dtypes; y may be x. Backward is the same on dy.
void dropout(ThreadPool& pool, const Rows& x, std::int64_t sequence, const DropoutMask& mask,
             const Rows& y);

}  // namespace isthmus::kernels

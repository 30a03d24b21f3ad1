// Recomputation: what a block makes in the forward pass dies with it, and is made again from the
// block's input right before the backward pass reads it (Chen et al., "Training Deep Nets with
// Sublinear Memory Cost", 2016). Of all blocks then only the inputs are kept:
//
//   forward   [block 0] [block 1] [block 2] [head]   backward  [2 b.] [1 again] [1 b.] [0 again] [0
//   b.]
//                    x1        x2                                          ▲                 ▲
//                    └─────────┴── kept ───────────────────────────────────┴─────────────────┘
//
// The last block is not: its backward comes next, so that it would cost and save nothing. Nor are
// the ops whose outputs backward does not read, as the last ones of a block. The results are the
// same to the bit.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/program.h"

namespace isthmus::runtime {

// `program`: of with_backward(). A pass, list → list.
Program with_recomputation(Program program);

}  // namespace isthmus::runtime

// The backward pass of a program, derived by walking its list in reverse: a pass, list → list.
//
//   forward    [embed] [norm] [linear] … [head_loss]
//   result     [embed] [norm] [linear] …  │  [head_loss b.] … [linear b.] [norm b.] [linear b.] …
//                                                              dx ──────▶ dy, y ──────▶ x of dW
//
// What a norm or a glu makes for one linear layer is not kept for that one's weight gradient: the
// backward op of the norm, which comes next anyway, makes it again beside what it computes, and the
// weight gradient waits for it. So a layer's norm outputs and products are never stored; nor are
// their rows in the order of experts, which a permutation makes again from them.
//
// What no training parameter needs is left out. The gradient of a value with several consumers is
// the sum in the order of the walk, added in place where the op can. Gradients of parameters are
// always added to, as they are sums over micro-batches too; what comes to one first in the list
// sets it in the first micro-batch, where it can. The gradient of a sum is the gradient of its
// parts, so those are one value where their lifetimes allow it, else a copy.
#pragma once

#include "runtime/program.h"

namespace isthmus::runtime {

// `forward` ends in a loss. Parameters that train get their gradient value.
Program with_backward(Program forward);

}  // namespace isthmus::runtime

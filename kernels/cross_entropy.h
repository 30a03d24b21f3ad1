// Cross-entropy over logits with the softmax fused: loss of each counted token, and the gradient of
// their weighted sum.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/rows.h"

namespace isthmus::kernels {

constexpr std::int32_t kIgnoredTarget = -100;  // a target that is not counted, as in PyTorch

struct CrossEntropySum {
  double loss = 0;  // sum over the counted tokens of -log softmax(logits)[target], in nats
  std::int64_t tokens = 0;
};

// logits [tokens, vocabulary]; targets [tokens] in [0, vocabulary) or kIgnoredTarget; token_losses
// [tokens], 0 where ignored.
CrossEntropySum cross_entropy_forward(ThreadPool& pool, const Rows& logits,
                                      std::span<const std::int32_t> targets,
                                      std::span<double> token_losses);

// The same, and dlogits = factor * (softmax(logits) - one_hot(target)), zero rows where ignored;
// dlogits may be logits. factor is usually 1 / counted tokens of the global batch.
CrossEntropySum cross_entropy_forward_backward(ThreadPool& pool, const Rows& logits,
                                               std::span<const std::int32_t> targets, float factor,
                                               const Rows& dlogits, std::span<double> token_losses);

}  // namespace isthmus::kernels

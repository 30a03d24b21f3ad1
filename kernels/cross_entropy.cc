#include "kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "kernels/elements.h"
#include "kernels/row_tasks.h"

namespace isthmus::kernels {
namespace {

// Returns the loss; writes the gradient unless `out` is null, which may be `in`.
template <class In, class Out>
double one_token(const In* in, std::int64_t vocabulary, std::int32_t target, float factor,
                 Out* out) {
  float largest = load(in);
  for (std::int64_t i = 1; i < vocabulary; ++i) largest = std::max(largest, load(in + i));
  float sum = 0;
  for (std::int64_t i = 0; i < vocabulary; ++i) sum += std::exp(load(in + i) - largest);
  const double loss = std::log(static_cast<double>(sum)) + static_cast<double>(largest) -
                      static_cast<double>(load(in + target));
  if (out != nullptr) {
    const float inverse = factor / sum;
    for (std::int64_t i = 0; i < vocabulary; ++i)
      store(std::exp(load(in + i) - largest) * inverse - (i == target ? factor : 0.0F), out + i);
  }
  return loss;
}

CrossEntropySum over_tokens(ThreadPool& pool, const Rows& logits,
                            std::span<const std::int32_t> targets, float factor,
                            const Rows& dlogits, std::span<double> token_losses) {
  ISTHMUS_ASSERT(static_cast<std::int64_t>(targets.size()) == logits.rows &&
                 token_losses.size() == targets.size() && logits.columns > 0);
  ISTHMUS_ASSERT(dlogits.data == nullptr || dlogits.same_shape(logits));
  for_row_tasks(
      pool, logits.rows, logits.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
        with_element(logits.dtype, [&](auto in) {
          with_element(dlogits.dtype, [&](auto out) {
            for (std::int64_t row = first; row < end; ++row) {
              auto* gradient = dlogits.data == nullptr
                                   ? nullptr
                                   : static_cast<decltype(out)*>(dlogits.at(row, 0));
              if (targets[row] == kIgnoredTarget) {
                token_losses[row] = 0;
                if (gradient != nullptr) std::fill_n(gradient, logits.columns, decltype(out){});
                continue;
              }
              ISTHMUS_ASSERT(targets[row] >= 0 && targets[row] < logits.columns);
              token_losses[row] = one_token(static_cast<const decltype(in)*>(logits.at(row, 0)),
                                            logits.columns, targets[row], factor, gradient);
            }
          });
        });
      });
  CrossEntropySum sum;
  for (std::size_t row = 0; row < targets.size(); ++row) {
    sum.loss += token_losses[row];
    sum.tokens += targets[row] != kIgnoredTarget;
  }
  return sum;
}

}  // namespace

CrossEntropySum cross_entropy_forward(ThreadPool& pool, const Rows& logits,
                                      std::span<const std::int32_t> targets,
                                      std::span<double> token_losses) {
  return over_tokens(pool, logits, targets, 0.0F, Rows{}, token_losses);
}

CrossEntropySum cross_entropy_forward_backward(ThreadPool& pool, const Rows& logits,
                                               std::span<const std::int32_t> targets, float factor,
                                               const Rows& dlogits,
                                               std::span<double> token_losses) {
  ISTHMUS_ASSERT(dlogits.data != nullptr);
  return over_tokens(pool, logits, targets, factor, dlogits, token_losses);
}

}  // namespace isthmus::kernels

// Model: one model on one rank's CPU threads. It owns parameters, gradients, optimizer state and
// the arena of activations, and runs the lists of ops that its family made (runtime/program.h).
// Data, schedules, files and communication are its callers' business:
//
//   for each inner step t:
//     model.zero_gradients();
//     for each micro-batch: loss += model.forward_backward(tokens, targets);
//     all_reduce model.gradients(), loss.sum and loss.counted over the ranks of the data axis;
//     model.update(adamw, schedule.rate(t), loss.counted);
//
// Parameters are seen in canonical form: whole tensors under their Hugging Face names, f32,
// row-major, contiguous, whatever has been fused inside (q, k, v are row ranges of one matrix).
//
// Results depend on the shapes, the inputs and the parameters only: they are bitwise the same for
// any number of threads and for every repetition on one machine. Not thread-safe; calls return when
// the work is done and allocate nothing after the first of their kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/tensor_view.h"
#include "base/thread_pool.h"
#include "kernels/gemm.h"
#include "runtime/batch_loss.h"
#include "runtime/canonical_tensor.h"
#include "runtime/decoding.h"
#include "runtime/fine_tuning.h"
#include "runtime/inner_optimizer.h"
#include "runtime/model_config.h"
#include "runtime/op_time.h"
#include "runtime/routing_report.h"

namespace isthmus::runtime {

struct UpdateReport {
  double gradient_norm = 0;  // of the mean gradient, before clipping
  bool finite = true;        // false: a gradient was not
  bool applied = false;      // false: nothing changed
};

class Model {
 public:
  // Plans and allocates everything for this batch shape; parameters are zero until initialise() or
  // an import. invalid_argument, unsupported, too_large (for this machine's memory). `pool` is used
  // during calls only, and outlives the model.
  static Result<std::unique_ptr<Model>> create(const ModelConfig& config, const BatchShape& shape,
                                               ThreadPool& pool, const FineTuning& tuning = {});
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const FineTuning& fine_tuning() const = 0;
  virtual const BatchShape& shape() const = 0;
  virtual std::span<const CanonicalTensor> tensors() const = 0;

  // Deterministic in (seed, tensor name, element): normal with deviation 0.02 for matrices and the
  // embedding, ones for norm weights, zeros for biases; of an adapter A uniform within 1 /
  // sqrt(in), B zero. Clears the optimizer state.
  virtual void initialise(std::uint64_t seed) = 0;
  // The same of the tensors that train; the others stay.
  virtual void initialise_trained(std::uint64_t seed) = 0;

  // One canonical tensor (index into tensors()); gradients and moments of one that trains. After
  // writing to parameters, parameters_changed().
  std::span<float> parameters(std::size_t tensor) { return slice(parameters(), tensor); }
  std::span<float> gradients(std::size_t tensor) { return slice(gradients(), tensor); }
  std::span<float> first_moments(std::size_t tensor) { return slice(first_moments(), tensor); }
  std::span<float> second_moments(std::size_t tensor) { return slice(second_moments(), tensor); }

  // The flat buffers behind them (runtime/canonical_tensor.h): what trains comes first in
  // parameters, and is all there is in the others. The elements between tensors are zero.
  virtual std::span<float> parameters() = 0;
  virtual std::span<float> gradients() = 0;
  virtual std::span<float> first_moments() = 0;
  virtual std::span<float> second_moments() = 0;

  // Makes the bf16 copies anew.
  virtual void parameters_changed() = 0;

  // Tokens and targets are micro_batch rows of `sequence` each; targets[i] is what follows
  // tokens[i], or kIgnoredTarget. Every token, and every target that counts, is in [0, vocabulary).
  // Of a model that predicts masked tokens, targets[i] is what tokens[i] was.
  // Of a shape with documents apart, document_starts[i] is where in its row the document of
  // tokens[i] begins: never after it, nor before that of the token before. Of others it is empty.
  // row_keys, one per row, say what dropout drops of it, whatever it is computed with; of a model
  // that has none they are not looked at.

  virtual void zero_gradients() = 0;  // costs next to nothing
  // Adds the gradient of the *sum* of losses to gradients().
  virtual BatchLoss forward_backward(std::span<const std::int32_t> tokens,
                                     std::span<const std::int32_t> targets,
                                     std::span<const std::int32_t> document_starts = {},
                                     std::span<const std::uint64_t> row_keys = {}) = 0;
  // Of what forward_backward() has done since zero_gradients(); empty without experts.
  virtual RoutingReport& routing() = 0;
  // Without gradients, and without what RouterOptions say: as the model will be used.
  virtual BatchLoss forward_loss(std::span<const std::int32_t> tokens,
                                 std::span<const std::int32_t> targets,
                                 std::span<const std::int32_t> document_starts = {}) = 0;
  // Scores of the next token after each of one text's tokens (1 to shape().sequence of them), or,
  // of a model that predicts masked tokens, of what each is: out[i * vocabulary + t]. Softmax of a
  // row gives probabilities.
  virtual void logits(std::span<const std::int32_t> tokens, std::span<float> out) = 0;
  // Texts of at most `length` tokens each, to be continued with the parameters as they are at each
  // call. The model outlives them. Errors: invalid_argument (no text, or longer than the model's
  // sequence_max), unsupported (a model that predicts masked tokens), too_large.
  virtual Result<std::unique_ptr<Decoding>> decoding(std::int64_t texts, std::int64_t length) = 0;

  // One AdamW step with gradients() / counted, clipped. `counted` is the global batch's; when it is
  // 0, a gradient is not finite, or all are too long (AdamWOptions), nothing changes. gradients()
  // stays as it is.
  virtual UpdateReport update(const AdamWOptions& options, double rate, std::int64_t counted) = 0;

  // Of update(): a tensor's learning rate is that of the first factor that fits its name. Factors
  // that check.
  virtual void set_rates(std::span<const RateFactor> rates) = 0;

  // AdamW steps done; with the moments, all of the optimizer's state.
  virtual std::int64_t updates() const = 0;
  virtual void set_updates(std::int64_t updates) = 0;

  // Off at first: times cost two clock readings per op.
  virtual void measure_ops(bool on) = 0;
  virtual std::vector<OpTime> op_times() const = 0;
  // The matrix products of one forward_backward(), in the order in which they run.
  virtual std::vector<kernels::GemmShape> gemms() const = 0;

  // Floating-point operations of one forward_backward() in which so many targets count: the head
  // multiplies no others.
  virtual double flops(std::int64_t counted) const = 0;

  // Bytes of the arena and of all flat buffers.
  virtual std::size_t memory_bytes() const = 0;

 private:
  std::span<float> slice(std::span<float> flat, std::size_t tensor) const {
    const auto& t = tensors()[tensor];
    return flat.subspan(t.first, t.elements());
  }
};

}  // namespace isthmus::runtime

// What training a model takes of a machine's memory, known before any of it is allocated. In
// double: sizes that no machine has are asked for too, by mistake.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "runtime/fine_tuning.h"
#include "runtime/model_config.h"

namespace isthmus::runtime {

// Bytes of one Model, by kind.
struct TrainingMemory {
  double weights = 0;      // f32, and their copies in bf16
  double gradients = 0;    // of parameters
  double optimizer = 0;    // AdamW's two moments
  double activations = 0;  // the arena; their gradients and the head's logits lie there too
  double working = 0;      // of the threads: panels of products, blocks of attention

  double total() const { return weights + gradients + optimizer + activations + working; }
};

// Of a config that checks, with so many threads.
TrainingMemory training_memory(const ModelConfig& config, const BatchShape& shape,
                               std::size_t threads, const FineTuning& tuning = {});

// What recomputation changes, whether `shape` has it or not: of each block that is made again (all
// but the last) the bytes that it saves and the operations that it costs, for a micro-batch.
struct RecomputationPlan {
  std::int64_t blocks = 0;  // that are made again
  double saved_bytes_per_block = 0;
  double flops_per_block = 0;
  double flops_without = 0;  // of a whole micro-batch, forward and backward
};
RecomputationPlan recomputation_plan(const ModelConfig& config, const BatchShape& shape,
                                     const FineTuning& tuning = {});

// In a federation, bytes per parameter besides the model: at each rank the base, the contribution
// and the state that replaces them.
inline constexpr std::size_t kFederatedRankBytes = 3 * sizeof(float);
// And of the site's gateway: the agreed parameters as they were and as they become, the feedback as
// it was and as it becomes, a state on its way, two states read for sites that return; and what it
// shares with rank 0 (contribution, state). Momentum comes with the first two and the last two.
// Coded contributions come on top.
inline constexpr std::size_t kGatewayStateBytes = 7 * sizeof(float);
inline constexpr std::size_t kGatewayMomentumBytes = 4 * sizeof(float);
inline constexpr std::size_t kGatewaySharedBytes = 2 * sizeof(float);

// Whether the `local_ranks` ranks of a machine with `machine_memory` bytes fit into it, each with a
// model of `model_bytes`, and, in a federation, their gateway; `federated_elements`: parameters of
// the model there, 0 alone. Errors: too_large, with what to make smaller.
Result<void> fits_in_memory(std::uint64_t machine_memory, int local_ranks, std::size_t model_bytes,
                            std::size_t federated_elements);

}  // namespace isthmus::runtime

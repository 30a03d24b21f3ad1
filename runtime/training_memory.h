// What training a model takes of a machine's memory, known before any of it is allocated. In
// double: sizes that no machine has are asked for too, by mistake.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "runtime/model_config.h"

namespace isthmus::runtime {

// Bytes of one Model: parameters, gradients, AdamW's two moments, the bf16 copies and the arena of
// activations. Of a config that checks.
double model_memory_bytes(const ModelConfig& config, const BatchShape& shape);

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

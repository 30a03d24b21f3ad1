#include "runtime/training_memory.h"

#include <fmt/format.h>

#include "runtime/canonical_tensor.h"
#include "runtime/executor.h"
#include "runtime/op_table.h"
#include "runtime/planner.h"
#include "runtime/training_program.h"

namespace isthmus::runtime {
namespace {

// Beyond it the planner's sums would overflow; no machine is near.
constexpr double kPlannedMax = 1e18;
// And beyond this what threads work in makes no difference.
constexpr double kWorkedMax = 1e13;

struct ArenaMemory {
  double bytes = 0;
  double working = 0;
};

ArenaMemory arena_memory(const Program& program, std::size_t threads) {
  double unshared = 0;
  for (const auto& value : program.values)
    if (lives_in_arena(value)) unshared += static_cast<double>(value.bytes());
  if (unshared > kPlannedMax) return {.bytes = unshared};
  const auto plan = plan_memory(program);
  ArenaMemory memory{.bytes = static_cast<double>(plan.arena_bytes)};
  if (threads > 0 && memory.bytes < kWorkedMax)
    memory.working = static_cast<double>(working_bytes(program, plan, threads));
  return memory;
}

}  // namespace

TrainingMemory training_memory(const ModelConfig& config, const BatchShape& shape,
                               std::size_t threads, const FineTuning& tuning) {
  const auto program = training_program(config, shape, tuning);
  const auto layout = lay_out_parameters(program);
  const double copies = shape.precision == Precision::bf16 ? sizeof(bf16_t) : 0;
  const double trained = sizeof(float) * static_cast<double>(layout.trained_elements);
  const auto arena = arena_memory(program, threads);
  return {.weights = sizeof(float) * static_cast<double>(layout.elements) +
                     copies * static_cast<double>(layout.copy_elements()),
          .gradients = trained,
          .optimizer = 2 * trained,
          .activations = arena.bytes,
          .working = arena.working};
}

RecomputationPlan recomputation_plan(const ModelConfig& config, const BatchShape& shape,
                                     const FineTuning& tuning) {
  const auto of = [&](Recompute recompute) {
    auto with = shape;
    with.recompute = recompute;
    return training_program(config, with, tuning);
  };
  const auto kept = of(Recompute::off);
  const auto made_again = of(Recompute::all);
  RecomputationPlan plan{.blocks = static_cast<std::int64_t>(kept.blocks.size()) - 1,
                         .flops_without = flops(kept)};
  if (plan.blocks < 1) return plan;
  const auto blocks = static_cast<double>(plan.blocks);
  plan.saved_bytes_per_block =
      (arena_memory(kept, 0).bytes - arena_memory(made_again, 0).bytes) / blocks;
  plan.flops_per_block = (flops(made_again) - plan.flops_without) / blocks;
  return plan;
}

Result<void> fits_in_memory(std::uint64_t machine_memory, int local_ranks, std::size_t model_bytes,
                            std::size_t federated_elements) {
  const auto of_rank = model_bytes + kFederatedRankBytes * federated_elements;
  const auto of_gateway = (kGatewayStateBytes + kGatewaySharedBytes) * federated_elements;
  const auto needed = static_cast<std::size_t>(local_ranks) * of_rank + of_gateway;
  if (needed < machine_memory) return {};
  constexpr double kGib = 1 << 30;
  return Error{ErrorCode::too_large,
               fmt::format("training needs {:.1f} GiB of memory, {:.1f} for each rank here and "
                           "{:.1f} for the gateway, and this machine has {:.1f}; use a smaller "
                           "micro_batch, sequence or model, or fewer ranks",
                           static_cast<double>(needed) / kGib, static_cast<double>(of_rank) / kGib,
                           static_cast<double>(of_gateway) / kGib,
                           static_cast<double>(machine_memory) / kGib)};
}

}  // namespace isthmus::runtime

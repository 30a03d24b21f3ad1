#include "runtime/training_memory.h"

#include "runtime/backward.h"
#include "runtime/canonical_tensor.h"
#include "runtime/family.h"
#include "runtime/planner.h"

namespace isthmus::runtime {
namespace {

// Beyond it the planner's sums would overflow; no machine is near.
constexpr double kPlannedMax = 1e18;

double arena_bytes(const Program& program) {
  double unshared = 0;
  for (const auto& value : program.values)
    if (lives_in_arena(value)) unshared += static_cast<double>(value.bytes());
  return unshared > kPlannedMax ? unshared : static_cast<double>(plan_memory(program).arena_bytes);
}

}  // namespace

double model_memory_bytes(const ModelConfig& config, const BatchShape& shape) {
  const auto program = with_backward(build_program(config, shape, Head::loss));
  const auto layout = lay_out_parameters(program);
  const double copies = shape.precision == Precision::bf16 ? sizeof(bf16_t) : 0;
  return 4 * sizeof(float) * static_cast<double>(layout.elements) +
         copies * static_cast<double>(layout.matrix_elements) + arena_bytes(program);
}

}  // namespace isthmus::runtime

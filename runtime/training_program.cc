#include "runtime/training_program.h"

#include <utility>

#include "runtime/backward.h"
#include "runtime/recompute.h"

namespace isthmus::runtime {

Program training_program(const ModelConfig& config, const BatchShape& wanted,
                         const FineTuning& tuning) {
  auto shape = wanted;
  shape.drops = true;
  auto program = with_backward(build_program(config, tuning, shape, Head::loss));
  return shape.recompute == Recompute::all ? with_recomputation(std::move(program))
                                           : std::move(program);
}

}  // namespace isthmus::runtime

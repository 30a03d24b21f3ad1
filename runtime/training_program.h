// The list of one micro-batch of training: the family's forward list, and what passes make of it.
#pragma once

#include "runtime/fine_tuning.h"
#include "runtime/model_config.h"
#include "runtime/program.h"

namespace isthmus::runtime {

// Forward and backward, with recomputation where `shape` asks for it; of a config that checks.
Program training_program(const ModelConfig& config, const BatchShape& shape,
                         const FineTuning& tuning = {});

}  // namespace isthmus::runtime

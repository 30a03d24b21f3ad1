// Which elements of the flat buffers are updated with which learning rate.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/result.h"
#include "runtime/canonical_tensor.h"
#include "runtime/fine_tuning.h"
#include "runtime/inner_optimizer.h"
#include "runtime/model_config.h"

namespace isthmus::runtime {

struct RateRange {
  std::size_t first = 0, end = 0;  // elements, the gap behind a tensor included
  double factor = 1;               // of the learning rate
  bool decays = false;             // whether they are matrices, which weight decay takes from
};

// All that trains, in ascending order, neighbours with equal factors together; a tensor has the
// first factor whose pattern fits its name, else 1.
std::vector<RateRange> rate_ranges(const ParameterLayout& layout,
                                   std::span<const RateFactor> rates);

// Errors: invalid_argument: a factor that is not above 0, a pattern that fits no tensor that
// trains. Of a config and a tuning that check.
Result<void> check(std::span<const RateFactor> rates, const ModelConfig& config,
                   const FineTuning& tuning);

}  // namespace isthmus::runtime

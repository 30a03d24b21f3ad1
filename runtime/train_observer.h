// TrainObserver: who watches a training as it goes: the metrics log, lines for people, event files
// for TensorBoard.
// Called on the first rank, between steps, and never fails them.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/evaluate.h"
#include "runtime/model_config.h"
#include "runtime/routing_report.h"

namespace isthmus::runtime {

// One inner step.
struct StepReport {
  std::int64_t inner_step = 0;  // steps done, this one included
  std::int64_t steps_left = 0;  // to the end of the run
  std::uint64_t outer_step = 0;
  double loss = 0;                       // nats per token that is predicted
  std::uint64_t tokens = 0;              // trained so far, by all ranks together
  std::uint64_t tokens_contributed = 0;  // of those: in contributions
  double seconds = 0;                    // that it took
  double tokens_per_second = 0;          // of all ranks together
  double flops_per_second = 0;           // of this rank: floating-point operations of the model
  double learning_rate = 0;
  double gradient_norm = 0;          // of the mean gradient, before clipping
  std::uint64_t skipped_steps = 0;   // so far
  std::uint64_t tokens_counted = 0;  // of the step, by all ranks together
  // Of a model that predicts hidden tokens: of those are the loss, and all numbers of tokens here.
  Objective objective = Objective::next_token;
  const RoutingReport* routing = nullptr;  // likewise; none without experts

  // Of one of the router's losses, per counted target.
  double mean(double sum) const {
    return tokens_counted == 0 ? 0 : sum / static_cast<double>(tokens_counted);
  }
};

// The loss on a text that is not trained on, after so many inner steps.
struct HeldOutResult {
  std::int64_t inner_step = 0;
  std::uint64_t outer_step = 0;
  std::string_view text;  // its name
  HeldOutLoss loss;
};

class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void inner_step(const StepReport& step) = 0;
  virtual void held_out(const HeldOutResult& held_out) = 0;
};

}  // namespace isthmus::runtime

// MetricsLog: a site's metrics.jsonl, one JSON object a line, for the report and for plots. Kinds:
//
//   inner_step    after each: loss (nats per token), tokens/s, learning rate, gradient norm,
//                 and the steps skipped so far
//   experts       beside it, of a model that has them: how many tokens chose each expert (layer
//                 after layer), the busiest one's load over an even share, the share of choices
//                 that was dropped, and the routers' losses
//   contribution  parameters handed to the gateway for outer step k
//   merge         a new agreed state taken over, and the seconds waited for it
//   initial_replaced  the run began with the first parameters of another site
//   held_out      the loss on a text that is not trained on: bits per byte, or per token where its
//                 bytes are not known
//   resumed       training begins, or goes on from a checkpoint, in a federation once it has a
//                 state and has said what is lost: later lines may repeat earlier steps; with its
//                 objective: where that is masked_tokens, losses and numbers of tokens are of
//                 hidden ones
//
// `tokens` counts all tokens trained, `tokens_contributed` those in contributions so far: after a
// crash the lines of the last process tell what was lost. Whole lines only
// (base/line_file.h); like a log, it never fails training.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/event_log.h"
#include "base/line_file.h"
#include "base/result.h"
#include "runtime/train_observer.h"

namespace isthmus::runtime {

class MetricsLog final : public TrainObserver {
 public:
  // What the last lines of an earlier process said.
  struct Last {
    std::int64_t inner_step = 0;
    std::uint64_t tokens = 0;
    // In contributions up to the one to this outer step.
    std::uint64_t tokens_contributed_up_to(std::uint64_t outer_step) const {
      auto tokens_up_to = tokens_contributed_before;
      for (const auto& [step, total] : contributions)
        if (step <= outer_step) tokens_up_to = total;
      return tokens_up_to;
    }
    std::vector<std::pair<std::uint64_t, std::uint64_t>>
        contributions;                            // that it made: step, total
    std::uint64_t tokens_contributed_before = 0;  // the first of them
  };

  // Errors: io, permission.
  static Result<std::unique_ptr<MetricsLog>> open(const Clock& clock, const std::string& path);
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  const std::optional<Last>& last() const { return last_; }

  void inner_step(const StepReport& step) override;
  void held_out(const HeldOutResult& held_out) override;

  // Adds time and kind.
  void write(std::string_view kind, std::initializer_list<Field> fields);

 private:
  MetricsLog(const Clock& clock, LineFile file) : clock_(clock), file_(std::move(file)) {}
  void read_last();

  const Clock& clock_;
  LineFile file_;
  std::optional<Last> last_;
};

}  // namespace isthmus::runtime

#include "launcher/train_lines.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/event_log.h"
#include "launcher/units.h"

namespace isthmus::launcher {
namespace {

constexpr double kOlderShare = 0.9;  // of an average over about ten steps

// Where nobody reads, or the disk is full, training counts for more than what is said of it.
void print(std::FILE* out, std::string line) {
  line += '\n';
  std::fputs(line.c_str(), out);
  std::fflush(out);
}

}  // namespace

TrainLines::TrainLines(std::FILE* out, const Clock& clock, Options options)
    : out_(out), clock_(clock), options_(std::move(options)) {}

void TrainLines::inner_step(const runtime::StepReport& step) {
  seconds_ =
      seconds_ == 0 ? step.seconds : kOlderShare * seconds_ + (1 - kOlderShare) * step.seconds;
  const double left = seconds_ * static_cast<double>(step.steps_left);
  const double share = options_.peak > 0 ? step.flops_per_second / options_.peak : 0;
  const double imbalance = step.routing == nullptr ? 0 : step.routing->imbalance();
  const double dropped = step.routing == nullptr ? 0 : step.routing->dropped_share();
  const bool of_hidden = step.objective == runtime::Objective::masked_tokens;
  if (options_.format == LogFormat::json) {
    std::vector<Field> fields = {{"inner_step", step.inner_step},
                                 {"steps_left", step.steps_left},
                                 {"loss", step.loss},
                                 {"tokens", step.tokens},
                                 {"tokens_per_second", step.tokens_per_second},
                                 {"share_of_peak", share},
                                 {"learning_rate", step.learning_rate},
                                 {"gradient_norm", step.gradient_norm},
                                 {"skipped_steps", step.skipped_steps},
                                 {"seconds_left", left}};
    if (step.routing != nullptr) {
      fields.emplace_back("expert_imbalance", imbalance);
      fields.emplace_back("dropped_share", dropped);
    }
    if (of_hidden) fields.emplace_back("objective", to_string(step.objective));
    print(out_, to_json(Event{.unix_time = clock_.unix_time(),
                              .severity = Severity::info,
                              .id = "inner_step",
                              .site = options_.site,
                              .peer = {},
                              .outer_step = static_cast<std::int64_t>(step.outer_step),
                              .fields = fields}));
    return;
  }
  const auto now = clock_.now();
  if (step.steps_left > 0 && now < next_) return;
  next_ = now + options_.pause;
  auto line = fmt::format("{} step {}/{}  loss {:.3f}  {} {}tokens/s", options_.site,
                          step.inner_step, step.inner_step + step.steps_left, step.loss,
                          about_count(step.tokens_per_second), of_hidden ? "hidden " : "");
  if (share > 0) line += fmt::format("  {:.0f} % of peak", 100 * share);
  line += fmt::format("  rate {:.3g}  gradient {:.3g}", step.learning_rate, step.gradient_norm);
  if (step.routing != nullptr) line += fmt::format("  busiest expert {:.2f}x", imbalance);
  if (dropped > 0) line += fmt::format("  {:.1f} % dropped", 100 * dropped);
  if (step.skipped_steps > 0) line += fmt::format("  {} skipped", step.skipped_steps);
  if (step.steps_left > 0) line += fmt::format("  {} left", about_duration(left));
  print(out_, std::move(line));
}

}  // namespace isthmus::launcher

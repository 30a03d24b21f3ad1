#include "launcher/train_lines.h"

#include <fmt/format.h>

#include <initializer_list>
#include <utility>

#include "base/event_log.h"
#include "launcher/units.h"

namespace isthmus::launcher {
namespace {

constexpr double kOlderShare = 0.9;  // of an average over about ten steps

}  // namespace

TrainLines::TrainLines(std::FILE* out, const Clock& clock, Options options)
    : out_(out), clock_(clock), options_(std::move(options)) {}

void TrainLines::inner_step(const runtime::StepReport& step) {
  seconds_ =
      seconds_ == 0 ? step.seconds : kOlderShare * seconds_ + (1 - kOlderShare) * step.seconds;
  const double left = seconds_ * static_cast<double>(step.steps_left);
  const double share = options_.peak > 0 ? step.flops_per_second / options_.peak : 0;
  if (options_.format == LogFormat::json) {
    const std::initializer_list<Field> fields = {{"inner_step", step.inner_step},
                                                 {"steps_left", step.steps_left},
                                                 {"loss", step.loss},
                                                 {"tokens", step.tokens},
                                                 {"tokens_per_second", step.tokens_per_second},
                                                 {"share_of_peak", share},
                                                 {"learning_rate", step.learning_rate},
                                                 {"gradient_norm", step.gradient_norm},
                                                 {"skipped_steps", step.skipped_steps},
                                                 {"seconds_left", left}};
    fmt::print(out_, "{}\n",
               to_json(Event{.unix_time = clock_.unix_time(),
                             .severity = Severity::info,
                             .id = "inner_step",
                             .site = options_.site,
                             .peer = {},
                             .outer_step = static_cast<std::int64_t>(step.outer_step),
                             .fields = {fields.begin(), fields.size()}}));
    std::fflush(out_);
    return;
  }
  const auto now = clock_.now();
  if (step.steps_left > 0 && now < next_) return;
  next_ = now + options_.pause;
  fmt::print(out_, "{} step {}/{}  loss {:.3f}  {} tokens/s", options_.site, step.inner_step,
             step.inner_step + step.steps_left, step.loss, about_count(step.tokens_per_second));
  if (share > 0) fmt::print(out_, "  {:.0f} % of peak", 100 * share);
  fmt::print(out_, "  rate {:.3g}  gradient {:.3g}", step.learning_rate, step.gradient_norm);
  if (step.skipped_steps > 0) fmt::print(out_, "  {} skipped", step.skipped_steps);
  if (step.steps_left > 0) fmt::print(out_, "  {} left", about_duration(left));
  fmt::print(out_, "\n");
  std::fflush(out_);
}

void TrainLines::held_out(std::int64_t, const runtime::HeldOutText&, const runtime::HeldOutLoss&) {}

}  // namespace isthmus::launcher

#include "launcher/step_lines.h"

#include <fmt/format.h>

#include <cstdlib>
#include <utility>

#include "launcher/units.h"

namespace isthmus::launcher {
namespace {

double number(const LoggedEvent& line, const char* name) {
  return std::strtod(line.field(name).c_str(), nullptr);
}

}  // namespace

void StepLines::note(const LoggedEvent& event) {
  if (event.id != "step_applied") return;
  // One behind is a step that has just been decided.
  if (const auto behind = std::strtoll(event.field("behind").c_str(), nullptr, 10); behind > 1)
    behind_until_ = event.outer_step + behind;
}

// The first state after a start may come before an inner step, and the states that a site replays
// come without any: what was trained before them is no news.
std::string StepLines::trained() const {
  if (last_.field("loss").empty()) return {};
  return fmt::format("  loss {:.3f}  {} tokens/s", number(last_, "loss"),
                     about_count(number(last_, "tokens_per_second")));
}

std::string StepLines::line_of(const LoggedEvent& line) {
  const bool trains = line.id == "inner_step";
  if (trains) last_ = line;
  const auto inner = trains ? static_cast<std::int64_t>(number(line, "inner_step")) : 0;
  const bool alone = trains && file_.alone() && inner % file_.sync.inner_steps == 0;
  if (!alone && line.id != "merge") return {};
  const auto step = alone ? inner / file_.sync.inner_steps : line.outer_step;
  auto text = fmt::format("{} outer step {}/{}", file_.site.name, step, file_.sync.outer_steps);
  if (step < behind_until_) {
    text += fmt::format("  catching up: the others have done {}", behind_until_);
  } else {
    text += trained();
    if (!alone) text += fmt::format("  waited {}", about_duration(number(line, "seconds_waited")));
    behind_until_ = 0;
  }
  last_ = {};
  return text;
}

}  // namespace isthmus::launcher

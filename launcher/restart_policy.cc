#include "launcher/restart_policy.h"

#include <fmt/format.h>
#include <string.h>

#include <algorithm>

#include "launcher/exit_code.h"

namespace isthmus::launcher {

std::string ProcessEnd::text() const {
  if (signal != 0) return fmt::format("ended by signal {} ({})", signal, ::strsignal(signal));
  if (code == 0) return "finished";
  if (code == static_cast<int>(ExitCode::no_room)) return "found no room on the disk";
  return fmt::format("ended with exit code {}", code);
}

RestartDecision RestartPolicy::on_end(const ProcessEnd& end, Nanoseconds lived,
                                      std::int64_t progress) {
  using enum RestartDecision::What;
  if (end.done()) return {.what = finished, .reason = {}};
  const auto is = [&end](ExitCode code) {
    return end.signal == 0 && end.code == static_cast<int>(code);
  };
  if (is(ExitCode::stopped)) return {.what = stopped, .reason = {}};
  if (is(ExitCode::bad_usage))
    return {
        .what = give_up,
        .reason =
            "starting it again cannot help: its settings, its roster or the other sites say no"};
  if (is(ExitCode::hopeless))
    return {.what = give_up, .reason = "starting it again cannot help: mend what it names first"};
  if (lived >= options_.healthy) failures_ = 0;
  // However often: it is nothing that the process does, and whoever makes room ends it.
  if (is(ExitCode::no_room))
    return {.what = restart,
            .delay = std::min(next_delay(), options_.delay_for_room_max),
            .reason = {}};
  instant_failures_ = lived < options_.instant ? instant_failures_ + 1 : 0;
  if (instant_failures_ >= options_.instant_failures_max)
    return {.what = give_up,
            .reason = fmt::format("it failed {} times in a row within {:.0f} s of its start",
                                  instant_failures_, seconds_of(options_.instant))};
  futile_failures_ = progress > progress_ ? 1 : futile_failures_ + 1;
  progress_ = std::max(progress_, progress);
  if (futile_failures_ >= options_.futile_failures_max)
    return {.what = give_up,
            .reason = fmt::format("it failed {} times without a new checkpoint or outer step",
                                  futile_failures_)};
  return {.what = restart, .delay = next_delay(), .reason = {}};
}

Nanoseconds RestartPolicy::next_delay() {
  return std::min(options_.first_delay << std::min(failures_++, 16), options_.delay_max);
}

}  // namespace isthmus::launcher

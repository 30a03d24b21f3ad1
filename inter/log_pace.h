// LogPace: what strangers can cause is logged once a second at most (or another interval; a few
// lines at once where each of them matters), with how often it happened meanwhile, so that a flood
// of them does not become a flood of log lines.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "inter/burst_pace.h"

namespace isthmus::inter {

class LogPace {
 public:
  explicit LogPace(Nanoseconds interval = kSecond, int burst = 1) : pace_(burst, interval) {}

  // How many were left out since the last one that was logged; nothing: leave this one out too.
  std::optional<std::uint64_t> due(Nanoseconds now) {
    if (pace_.take(now)) return std::exchange(left_out_, 0);
    leave_out();
    return std::nullopt;
  }
  void leave_out() { ++left_out_; }

 private:
  BurstPace pace_;
  std::uint64_t left_out_ = 0;
};

// Of `wire_violation`, which a gateway of the roster causes that is broken or malicious.
inline constexpr int kViolationsAtOnce = 4;
// A site that the roster does not list any more tries for as long as it runs.
inline constexpr Nanoseconds kRefusedKeysApart = 60 * kSecond;
inline constexpr int kRefusedKeysAtOnce = 4;

}  // namespace isthmus::inter

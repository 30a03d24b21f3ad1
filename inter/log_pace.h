// LogPace: what strangers can cause is logged once a second at most (or another interval), with how
// often it happened meanwhile, so that a flood of them does not become a flood of log lines.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "base/clock.h"

namespace isthmus::inter {

class LogPace {
 public:
  explicit LogPace(Nanoseconds interval = kSecond) : interval_(interval) {}

  // How many were left out since the last one that was logged; nothing: leave this one out too.
  std::optional<std::uint64_t> due(Nanoseconds now) {
    if (now < next_) {
      ++left_out_;
      return std::nullopt;
    }
    next_ = now + interval_;
    return std::exchange(left_out_, 0);
  }

 private:
  Nanoseconds interval_;
  Nanoseconds next_ = INT64_MIN;
  std::uint64_t left_out_ = 0;
};

}  // namespace isthmus::inter

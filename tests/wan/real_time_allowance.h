// RealTimeAllowance: whether the emulator may run before all other processes. On a busy machine
// packets would else be late by the others' time slices; but a real-time process that needs all of
// a core would leave the others nothing. So it may while it needs less than half a core.
#pragma once

#include <optional>

#include "base/clock.h"

namespace isthmus::wan {

class RealTimeAllowance {
 public:
  // The allowance is judged over spans of this length.
  static constexpr Nanoseconds kSpan = 50 * kMillisecond;
  static constexpr double kShareMost = 0.5;       // of a core, when it is withdrawn
  static constexpr double kShareToReturn = 0.35;  // lower, so that it does not flutter

  // Granted at first.
  RealTimeAllowance(Nanoseconds now, Nanoseconds cpu_time) : since_(now), cpu_then_(cpu_time) {}

  // Whether a span has passed: before, judge() need not be called, nor the CPU clock read.
  bool due(Nanoseconds now) const { return now - since_ >= kSpan; }

  // The allowance after the span that ends `now`, if it changed.
  std::optional<bool> judge(Nanoseconds now, Nanoseconds cpu_time);

 private:
  Nanoseconds since_;
  Nanoseconds cpu_then_;
  bool granted_ = true;
};

}  // namespace isthmus::wan

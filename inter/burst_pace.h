// BurstPace: what others can cause happens a few times at once, and then once an interval at most.
#pragma once

#include <algorithm>

#include "base/clock.h"

namespace isthmus::inter {

class BurstPace {
 public:
  BurstPace(int burst, Nanoseconds interval) : burst_(burst), interval_(interval) {}

  bool may(Nanoseconds now) const { return spent_until_ <= now; }
  // Whether it may happen now; then it has.
  bool take(Nanoseconds now) {
    const auto earliest = now - (burst_ - 1) * interval_;
    if (!may(now)) return false;
    spent_until_ = std::max(spent_until_, earliest) + interval_;
    return true;
  }

 private:
  int burst_;
  Nanoseconds interval_;
  Nanoseconds spent_until_ = INT64_MIN / 2;  // all that would have come by then has happened
};

}  // namespace isthmus::inter

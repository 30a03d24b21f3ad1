// RedialDelay: how long a dialing end waits before the next attempt. The wait doubles while the
// peer answers and refuses; silence is tried at once again, it took its time already, and so is a
// connection that lived for a while.
#pragma once

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace isthmus::inter {

class RedialDelay {
 public:
  RedialDelay(Nanoseconds delay_min, Nanoseconds delay_max)
      : min_(delay_min), max_(delay_max), next_(delay_min) {}

  void dialing(Nanoseconds now) { dialed_ = now; }
  void up(Nanoseconds now) { up_ = now; }
  // The attempt has failed, or the connection has ended.
  Nanoseconds ended(Nanoseconds now, bool was_up) {
    if (was_up && now - up_ >= kGoodConnection) next_ = min_;
    if (!was_up && now - dialed_ >= kSilence) return min_;
    return std::exchange(next_, std::min(2 * next_, max_));
  }

 private:
  // An attempt that took this long met silence rather than a refusal.
  static constexpr Nanoseconds kSilence = kSecond;
  static constexpr Nanoseconds kGoodConnection = 5 * kSecond;

  Nanoseconds min_, max_, next_;
  Nanoseconds dialed_ = 0, up_ = 0;
};

}  // namespace isthmus::inter

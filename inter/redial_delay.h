// RedialDelay: how long a dialing end waits before the next attempt, and how long an attempt waits
// for TCP. The wait doubles while the peer answers and refuses; silence is tried at once again, it
// took its time already, and so is a connection that lived for a while. Soon after a connection
// ended attempts are short: TCP itself would ask a line that is back only once a second.
#pragma once

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace isthmus::inter {

class RedialDelay {
 public:
  RedialDelay(Nanoseconds delay_min, Nanoseconds delay_max)
      : min_(delay_min), max_(delay_max), next_(delay_min) {}

  // An attempt begins. Returns how long it may wait for TCP, `longest` at most.
  Nanoseconds dialing(Nanoseconds now, Nanoseconds longest) {
    dialed_ = now;
    const bool was_there = took_ > 0 && now - last_up_ < kSoon;
    patience_ = was_there ? std::clamp(took_, std::min(kPatienceMin, longest), longest) : longest;
    return patience_;
  }
  void up(Nanoseconds now) {
    up_ = now;
    took_ = now - dialed_;
  }
  // The attempt has failed, or the connection has ended.
  Nanoseconds ended(Nanoseconds now, bool was_up) {
    if (was_up) last_up_ = now;
    if (was_up && now - up_ >= kGoodConnection) next_ = min_;
    if (!was_up && now - dialed_ + kTimerError >= std::min(patience_, kSilence)) return min_;
    return std::exchange(next_, std::min(2 * next_, max_));
  }

 private:
  // An attempt that took this long met silence rather than a refusal.
  static constexpr Nanoseconds kSilence = kSecond;
  // Whoever ends an attempt counts whole milliseconds, from a moment of its own.
  static constexpr Nanoseconds kTimerError = 20 * kMillisecond;
  static constexpr Nanoseconds kGoodConnection = 5 * kSecond;
  // For as long it is taken for certain that the way has not become longer than it was.
  static constexpr Nanoseconds kSoon = 60 * kSecond;
  static constexpr Nanoseconds kPatienceMin = 400 * kMillisecond;

  Nanoseconds min_, max_, next_;
  Nanoseconds dialed_ = 0, up_ = 0, last_up_ = 0;
  Nanoseconds patience_ = 0;  // of this attempt
  Nanoseconds took_ = 0;      // the last one that came up, handshake included: several round trips
};

}  // namespace isthmus::inter

// RedialDelay: how long a dialing end waits before the next attempt, and how long an attempt waits
// for TCP. The wait doubles while the peer answers and refuses; silence is tried again without one,
// it took its time already, and a connection that lived for a while soon. Soon after a connection
// ended attempts are short, two round trips as TCP saw them: it would ask a line that is back only
// once a second by itself. But for each fourth one: the way may have become longer, or have a
// queue.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "base/clock.h"

namespace isthmus::inter {

class RedialDelay {
 public:
  RedialDelay(Nanoseconds delay_min, Nanoseconds delay_max)
      : min_(delay_min), max_(delay_max), next_(delay_min) {}

  // An attempt begins, with the look-up of a name; where there is none, with dialing().
  void looking_up(Nanoseconds now) {
    began_ = now;
    connected_ = false;
    patience_ = kSilence;
  }
  // TCP is asked. Returns how long it may take, `longest` at most.
  Nanoseconds dialing(Nanoseconds now, Nanoseconds longest) {
    looking_up(now);
    const bool was_there = took_ && now - last_up_ < kSoon;
    patience_ =
        was_there ? std::clamp(2 * *took_, std::min(kPatienceMin, longest), longest) : longest;
    return patience_;
  }
  // TCP has answered; handshakes follow, and up() or ended().
  void connected(Nanoseconds now) {
    connected_ = true;
    took_ = now - began_;
    if (*took_ >= kTcpAsksAgain) took_.reset();
  }
  void up(Nanoseconds now) { up_ = now; }
  // The attempt has failed, or the connection has ended.
  Nanoseconds ended(Nanoseconds now, bool was_up) {
    if (was_up) last_up_ = now;
    if (was_up && now - up_ >= kGoodConnection) next_ = min_;
    const auto silence = connected_ ? kSilence : std::min(patience_, kSilence);
    if (!was_up && now - began_ + kTimerError >= silence) return 0;
    return std::exchange(next_, std::min(2 * next_, max_));
  }

 private:
  // An attempt that took this long met silence rather than a refusal.
  static constexpr Nanoseconds kSilence = kSecond;
  // Whoever ends an attempt counts whole milliseconds, from a moment of its own.
  static constexpr Nanoseconds kTimerError = 20 * kMillisecond;
  static constexpr Nanoseconds kGoodConnection = 5 * kSecond;
  // For as long it is taken for certain that the way has not become longer than it was.
  static constexpr Nanoseconds kSoon = 30 * kSecond;
  static constexpr Nanoseconds kPatienceMin = 400 * kMillisecond;
  // By itself, first: what took longer may have lost the first packet, and tells nothing of the
  // way.
  static constexpr Nanoseconds kTcpAsksAgain = kSecond;

  Nanoseconds min_, max_, next_;
  Nanoseconds began_ = 0, up_ = 0, last_up_ = 0;
  Nanoseconds patience_ = 0;         // of this attempt, until TCP has answered
  bool connected_ = false;           // it has
  std::optional<Nanoseconds> took_;  // that, the last time: a round trip; nothing: not known
};

}  // namespace isthmus::inter

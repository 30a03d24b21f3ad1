// RedialDelay: how long a dialing end waits before the next attempt, and how long an attempt waits
// for TCP. The wait doubles while the peer answers and refuses; silence is tried again without one,
// it took its time already, and a connection that lived for a while soon. For half a minute after a
// connection ended waits stay short, since a route that is gone, or a router that says so, refuses
// as a peer does that starts again; and attempts are short, two round trips as TCP saw them: it
// would ask a line that is back only once a second by itself. Each fourth one has three times as
// long, since the way may have become longer, or have a queue: more would cost too much where it
// has not.
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
    patience_ = longest;
    if (!took_ || !was_up_lately(now)) return patience_;
    const bool is_long = ++attempts_ % kOneIsLongOf == 0;
    patience_ =
        is_long ? std::max(kLongPatienceMin, 3 * 2 * *took_) : std::max(kPatienceMin, 2 * *took_);
    patience_ = std::min(patience_, longest);
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
    if (was_up) {
      last_up_ = now;
      attempts_ = 0;
    }
    if (was_up && now - up_ >= kGoodConnection) next_ = min_;
    const auto silence = connected_ ? kSilence : std::min(patience_, kSilence);
    if (!was_up && now - began_ + kTimerError >= silence) return 0;
    const auto wait = std::exchange(next_, std::min(2 * next_, max_));
    return was_up_lately(now) && !connected_ ? std::min(wait, kWaitSoonMax) : wait;
  }

 private:
  bool was_up_lately(Nanoseconds now) const { return last_up_ && now - *last_up_ < kSoon; }

  // An attempt that took this long met silence rather than a refusal.
  static constexpr Nanoseconds kSilence = kSecond;
  // Whoever ends an attempt counts whole milliseconds, from a moment of its own.
  static constexpr Nanoseconds kTimerError = 20 * kMillisecond;
  static constexpr Nanoseconds kGoodConnection = 5 * kSecond;
  static constexpr Nanoseconds kSoon = 30 * kSecond;
  static constexpr Nanoseconds kWaitSoonMax = 500 * kMillisecond;
  static constexpr Nanoseconds kPatienceMin = 400 * kMillisecond;
  static constexpr Nanoseconds kLongPatienceMin = 600 * kMillisecond;
  static constexpr int kOneIsLongOf = 4;
  // By itself, first: what took longer may have lost the first packet, and tells nothing of the
  // way.
  static constexpr Nanoseconds kTcpAsksAgain = kSecond;

  Nanoseconds min_, max_, next_;
  Nanoseconds began_ = 0, up_ = 0;
  std::optional<Nanoseconds> last_up_;
  Nanoseconds patience_ = 0;         // of this attempt, until TCP has answered
  bool connected_ = false;           // it has
  int attempts_ = 0;                 // since it was up
  std::optional<Nanoseconds> took_;  // that, the last time: a round trip; nothing: not known
};

}  // namespace isthmus::inter

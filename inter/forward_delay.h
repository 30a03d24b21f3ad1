// ForwardDelay: how long what we send waits on its way to a peer, and not what comes back. A round
// trip cannot tell: where both ends send as much as the line carries, each would take the other's
// queue for its own.
//
//     apparent delay = when it arrived by the peer's clock − when it left by ours
//     waits          = the least of the last moment − the least of the last minutes
//
// As in LEDBAT (RFC 6817, 2.4): the clocks' difference is in both and drops out, and what they
// drift apart within minutes is small beside a queue. The least of a moment, since what was lost
// on the way comes a round trip later.
//
// The peer's word is all there is of its clock: whoever believes it bounds it by the round trip.
// And stamps go on a connection of their own, which need not wait where others do (a router with
// fair queues): what their round trip waits tells.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "base/clock.h"

namespace isthmus::inter {

class ForwardDelay {
 public:
  struct Waits {
    Nanoseconds there = 0, both_ways = 0;
  };

  void new_session() { *this = {}; }
  void add(Nanoseconds now, Nanoseconds left, Nanoseconds arrived, Nanoseconds round_trip);

  // Nothing: not known lately.
  std::optional<Waits> waits(Nanoseconds now) const;

 private:
  struct Delays {
    Nanoseconds apparent = 0, round_trip = 0;

    static Delays least(const Delays& a, const Delays& b) {
      return {std::min(a.apparent, b.apparent), std::min(a.round_trip, b.round_trip)};
    }
  };

  std::deque<std::pair<Nanoseconds, Delays>> lately_;  // by when
  std::array<std::optional<Delays>, 5> minutes_;       // the least of each
  std::int64_t minute_ = 0;                            // of the newest sample
};

}  // namespace isthmus::inter

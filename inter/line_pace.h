// LinePace: how fast all bulk connections to a peer may send together, under BBR. Each of several
// such connections remembers the best rate that it has ever had, which is nearly the whole line
// where the others were just pausing: when all begin to send at once, they send more than the line
// carries, and fill its queue until it drops packets. Nobody but who owns them all can tell.
//
//     carried: delivered ÷ time, over the last two round trips, of all connections
//     queue:   round trip − the shortest one
//
//     begin ──▶ at 1.1 × what the line has carried (unpaced, as long as nothing is known)
//        queue > a round trip ──▶ drain: at 0.8 × carried, until the queue is three quarters of
//        that
//                                   └──▶ hold: at what was carried, while there is a queue
//        queue < a quarter of it ──▶ 5 % faster a round trip; after twelve of them unpaced again
//
// Where the round trip stays long although what is sent arrives as fast, none of it waits: others'
// packets do, or acknowledgements on their way back, or the route has become longer. So much of the
// round trip is no queue of ours then, for a while.
//
// Pure arithmetic, no clock of its own.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "base/clock.h"

namespace isthmus::inter {

class LinePace {
 public:
  struct Sample {
    Nanoseconds now = 0;
    std::uint64_t delivered_bytes = 0;  // by all connections, ever
    Nanoseconds round_trip = 0;         // lately, of those that deliver, the shortest; 0: none does
    Nanoseconds round_trip_min = 0;     // that the kernel remembers; 0: none
    bool full = false;                  // all that can be sent has not left yet
  };

  // Sending begins, after a pause.
  void begin(Nanoseconds now);
  // Once in each next_look(), while it lasts.
  void look(const Sample& sample);

  // Nothing: as fast as the congestion control likes.
  std::optional<double> bytes_per_second() const { return pace_; }
  Nanoseconds next_look() const;

 private:
  struct Moment {
    Nanoseconds time = 0;
    std::uint64_t delivered_bytes = 0;
    Nanoseconds round_trip = 0;
  };

  void note_base(const Sample& sample);
  void measure(const Sample& sample);
  void begin_draining(const Sample& sample);
  void drain(const Sample& sample);
  void end_draining();
  void follow(const Sample& sample);
  Nanoseconds stretch() const;
  Nanoseconds target() const;

  std::optional<double> pace_;  // bytes per second, as all that follows
  double line_ = 0;             // that the line has carried; 0: not known
  double carried_ = 0;          // 0: not known
  std::deque<Moment> moments_;  // of the last stretch, oldest first

  Nanoseconds looked_ = 0;
  Nanoseconds counts_from_ = 0;  // what arrives before was sent before the pause
  Nanoseconds round_trip_ = 0, base_ = 0, queue_ = 0;
  Nanoseconds others_ = 0, others_until_ = 0;  // of the round trip, beyond base_

  bool draining_ = false;
  bool drained_ = false;  // since it began
  Nanoseconds drain_began_ = 0;
  std::optional<Nanoseconds> short_since_;
};

}  // namespace isthmus::inter

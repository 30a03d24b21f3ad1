// PoliteRate: how fast a connection may send that yields to others. It fills what they leave: its
// window grows while the path's queue is short, and shrinks as the queue grows past a target, long
// before one that fills queues until packets are lost would notice anything.
//
// RFC 6817 (LEDBAT): the queueing delay is the round trip beyond the least one of the last ten
// minutes, kept by the minute. Its target must be 100 ms or less. Here it is a quarter of the least
// round trip, between 6 and 25 ms: a flow under bbr, which keeps at most one round trip's worth in
// the queue, would be displaced by more, and one that fills queues would lose what its own fall
// behind a loss leaves free. From LEDBAT++ (draft-irtf-iccrg-ledbat-plus-plus, 4.1 to 4.4): growth
// by `gain` segments a round trip (gain 1, as the target is below half a round trip),
// multiplicative decrease with the delay and at most to a half, and slowdowns that let the base be
// seen.
//
// Otherwise than there: what grew undisturbed for eight round trips grows ever faster, up to 5 % a
// round trip, 15 % far below what filled the line before (exchanges are over in seconds); a
// decrease waits for the effect of the one before; at least 4 % of what filled the line are left,
// as the round trip of lone segments says little; and losses count only above 2 % of a round trip's
// segments (bbr2's threshold), since a wide-area line loses some anyway.
//
// Pure arithmetic, one connection, no clock of its own.
#pragma once

#include <array>
#include <cstdint>

#include "base/clock.h"

namespace isthmus::inter {

class PoliteRate {
 public:
  static constexpr Nanoseconds kTargetMin = 6 * kMillisecond;
  static constexpr Nanoseconds kTargetMax = 25 * kMillisecond;

  // What the kernel says of the connection; counts are since it began.
  struct Sample {
    Nanoseconds now = 0;
    Nanoseconds round_trip = 0;      // lately; 0: not known yet
    Nanoseconds round_trip_min = 0;  // that the kernel remembers; 0: none
    std::uint32_t segment_bytes = 0;
    std::uint64_t acknowledged_bytes = 0;
    std::uint64_t segments_sent = 0;
    std::uint64_t segments_resent = 0;
  };
  // Once in each next_look().
  void look(const Sample& sample);

  double bytes_per_second() const { return rate_; }
  Nanoseconds next_look() const;
  // As of the last look.
  Nanoseconds queueing_delay() const { return delay_; }
  Nanoseconds target() const { return target_; }

 private:
  void note_base(const Sample& sample);
  double least_window(double segment) const;
  void grow(double segment);
  void shrink(double window);

  std::array<Nanoseconds, 10> minutes_{};  // the least round trip of each; 0: none
  std::int64_t minute_ = -1;
  Nanoseconds base_ = 0, delay_ = 0, target_ = kTargetMax, round_trip_ = 0;
  double window_ = 0;  // bytes
  double filled_ = 0;  // the window, when undisturbed growth last met a queue
  double rate_ = 1e9;  // until the first look
  bool starting_ = true;
  int stuck_ = 0;        // looks at which not even the least window got through
  int undisturbed_ = 0;  // looks in a row
  int hold_ = 0;         // looks until what was decided last shows
  Nanoseconds slow_next_ = 0;
  int slow_left_ = 0;  // looks
  Sample last_;
};

}  // namespace isthmus::inter

// LinePace: how fast all bulk connections to a peer may send together, under BBR. Each of several
// such connections remembers the best rate that it has ever had, which is nearly the whole line
// where the others were just pausing: when all begin to send at once, they send more than the line
// carries, and fill its queue until it drops packets. Nobody but who owns them all can tell.
//
//     carried: delivered ÷ time, over a round trip in which there was more to send or a queue
//              (without a pace yet, and where `waits` is known, one with a queue of ours suffices:
//              a whole sending may be over in three)
//     line:    the most that was carried, until less than the pace is for eight round trips in
//              which anything arrives: the most of these then, or a tenth
//     queue:   round trip − the shortest one, or what is sent waits on its way there, if that is
//              known and less; a quarter of the shortest round trip is the target
//
//     free   ──▶ as fast as the congestion control likes
//        queue > target: what is carried now is what the line carries
//     paced  ──▶ at line × (1 − half of (queue − target) ÷ round trip), 0.75 to 1.1 of it
//        queue < half the target, for eight round trips: the line carries more than is known
//
// The most, and not what was carried last: that falls for a moment when BBR looks for the shortest
// round trip or losses are mended, and would never rise again if the pace followed it. The pace is
// an upper bound only: where the line gets slower BBR itself is slower at once.
//
// Where the round trip stays long although what is sent arrives as fast, nothing of ours waits:
// others' packets do, or acknowledgements on their way back, or the route has become longer. So
// much of the round trip is no queue of ours then, for a while. But where it is known that what is
// sent does wait, the line may carry less than was thought: first what arrives is taken for what it
// carries, and only if that makes the queue no shorter it is others'.
//
// Pure arithmetic, no clock of its own.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "base/clock.h"

namespace isthmus::inter {

class LinePace {
 public:
  struct Sample {
    Nanoseconds now = 0;
    std::uint64_t delivered_bytes = 0;  // by all connections, ever
    Nanoseconds round_trip = 0;         // lately, of those that deliver, the shortest; 0: none does
    Nanoseconds round_trip_min = 0;     // that the kernel remembers; 0: none
    // How long what is sent waits on its way there, if that is known; else the round trip tells.
    std::optional<Nanoseconds> waits = std::nullopt;
    bool full = false;  // all that can be sent has not left yet
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
    Nanoseconds wait_back = 0;  // of it: acknowledgements in queues, about
  };
  struct Doubt {
    double line = 0;  // line_ before what arrives was taken for it
    Nanoseconds queue = 0;
  };

  void note_pause(Nanoseconds now);
  void note_base(const Sample& sample);
  void measure(const Sample& sample);
  const Moment* first_of_short_stretch(const Sample& sample) const;
  void note_arrivals(const Moment& first, Nanoseconds later);
  void note_carried(Nanoseconds now);
  void look_for_others(const Sample& sample);
  void choose(const Sample& sample);
  double paced() const;
  void set_pace(Nanoseconds now, std::optional<double> pace);
  double sent_at_most(Nanoseconds now) const;
  bool hurries() const { return free_ && waits_known_; }
  Nanoseconds stretch() const;
  Nanoseconds target() const;

  std::optional<double> pace_;  // bytes per second, as all that follows
  bool free_ = true;
  double carried_ = 0;   // 0: not known
  double at_least_ = 0;  // of it: what arrived because acknowledgements waited less is left out
  double line_ = 0;      // 0: not known
  double less_ = 0;      // the most that was carried since that was less than the pace
  Nanoseconds less_for_ = 0;
  std::deque<Moment> moments_;  // of the last stretch, oldest first
  std::deque<std::pair<Nanoseconds, std::optional<double>>> paces_;  // each since when it changed

  Nanoseconds delivered_at_ = 0;  // as of the last look with news
  Nanoseconds counts_from_ = 0;   // what arrives before was sent before the pause
  Nanoseconds round_trip_ = 0, base_ = 0, queue_ = 0;
  bool waits_known_ = false;                   // as of the last look
  std::optional<Nanoseconds> queued_since_;    // half a target or more
  Nanoseconds others_ = 0, others_until_ = 0;  // of the round trip, beyond base_
  std::optional<Nanoseconds> slowed_since_, short_since_;
  std::optional<Doubt> doubt_;
};

}  // namespace isthmus::inter

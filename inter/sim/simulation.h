// Simulation: virtual time and the queue of what happens in it. One thread; everything random comes
// from one seed, so one seed twice gives the same run, event for event.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "base/clock.h"

namespace isthmus::inter::sim {

class Simulation final : public Clock {
 public:
  Nanoseconds now() const override { return now_; }
  // A calendar that begins in 2026.
  Nanoseconds unix_time() const override { return 1'767'225'600 * kSecond + now_; }

  using EventId = std::uint64_t;
  // Equal times in the order of scheduling. `actor` names whose loop has work afterwards; -1: none.
  EventId at(Nanoseconds when, int actor, std::function<void()> what) {
    events_.emplace(std::pair(when < now_ ? now_ : when, ++last_), Event{actor, std::move(what)});
    return last_;
  }
  EventId after(Nanoseconds delay, int actor, std::function<void()> what) {
    return at(now_ + delay, actor, std::move(what));
  }

  bool empty() const { return events_.empty(); }
  Nanoseconds next() const { return events_.begin()->first.first; }
  int next_actor() const { return events_.begin()->second.actor; }
  void advance(Nanoseconds when) { now_ = when; }
  // Runs the first event; the actor.
  int run_one() {
    auto node = events_.extract(events_.begin());
    now_ = node.key().first;
    node.mapped().what();
    return node.mapped().actor;
  }
  // Takes the first event away without running it: what happens to who stands still.
  std::function<void()> take_one() {
    auto node = events_.extract(events_.begin());
    now_ = node.key().first;
    return std::move(node.mapped().what);
  }

 private:
  struct Event {
    int actor;
    std::function<void()> what;
  };
  Nanoseconds now_ = 0;
  EventId last_ = 0;
  std::map<std::pair<Nanoseconds, EventId>, Event> events_;
};

}  // namespace isthmus::inter::sim

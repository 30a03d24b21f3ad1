// SimulatedClock: the clock of one machine in a Simulation. It begins anywhere, runs a little too
// fast or too slow, and its calendar jumps. Timers of who lives by it are due by its own time.
#pragma once

#include <algorithm>

#include "base/clock.h"
#include "inter/sim/simulation.h"

namespace isthmus::inter::sim {

class SimulatedClock final : public Clock {
 public:
  // `fast_ppm`: parts in a million by which it runs too fast; negative: too slow.
  explicit SimulatedClock(const Simulation& simulation, std::int64_t fast_ppm = 0)
      : simulation_(simulation), fast_ppm_(fast_ppm) {}

  Nanoseconds now() const override { return at(simulation_.now()); }
  Nanoseconds unix_time() const override {
    return simulation_.unix_time() + at(simulation_.now()) - origin_ - simulation_.now() + jumped_;
  }

  // The machine started again, now: its monotonic time begins at `origin`.
  void restart(Nanoseconds origin) { origin_ += origin - now(); }
  void jump(Nanoseconds by) { jumped_ += by; }
  void set_right() { jumped_ = 0; }

  // When, in the simulation's time, this clock first shows `local` or more.
  Nanoseconds when(Nanoseconds local) const {
    auto t = (local - origin_) / (kMillion + fast_ppm_) * kMillion;
    while (at(t) < local) t += std::max<Nanoseconds>(1, (local - at(t)) / 2);
    while (at(t - 1) >= local) --t;
    return t;
  }

 private:
  static constexpr std::int64_t kMillion = 1'000'000;
  Nanoseconds at(Nanoseconds t) const { return origin_ + t + t * fast_ppm_ / kMillion; }

  const Simulation& simulation_;
  const std::int64_t fast_ppm_;
  Nanoseconds origin_ = 0;  // what it shows at the simulation's 0
  Nanoseconds jumped_ = 0;
};

}  // namespace isthmus::inter::sim

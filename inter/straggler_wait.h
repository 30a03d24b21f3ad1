// StragglerWait: how much longer than usual a step waits for who is late and shows progress, at
// most. Unless somebody has chosen it, as long as this site's own ranks compute for a step (mean
// and 4 deviations, as TCP learns its round trip), ten minutes at least: longer is dearer than to
// go on without its work, which its next contribution has too. No other site has a part in what is
// learnt.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "base/clock.h"
#include "inter/learnt.h"

namespace isthmus::inter {

class StragglerWait {
 public:
  // Ranks may compile, write a checkpoint or start again, and a line carry a hundredth of what it
  // did.
  static constexpr Nanoseconds kLeast = 600 * kSecond;

  explicit StragglerWait(std::optional<Nanoseconds> chosen) : chosen_(chosen) {}

  // So long the ranks computed for a contribution.
  void add_step(Nanoseconds took) { steps_.add(took); }

  Nanoseconds most() const { return chosen_ ? *chosen_ : std::max(kLeast, steps_.spread()); }
  // A contribution that came so late. What is later than all of this teaches no more than that, or
  // who contributes ever later would be waited for ever longer.
  void learn(Learnt& lateness, Nanoseconds late) const {
    lateness.add(std::min(late, std::max(kLeast, most())));
  }
  // Where that is from.
  std::string why() const {
    if (chosen_) return "straggler_wait";
    if (steps_.spread() < kLeast) return "ten minutes, as no straggler_wait is set";
    return fmt::format("a step takes {:.0f} s here, give or take {:.0f} s",
                       seconds_of(steps_.mean()), seconds_of(steps_.deviation()));
  }

 private:
  std::optional<Nanoseconds> chosen_;
  Learnt steps_;
};

}  // namespace isthmus::inter

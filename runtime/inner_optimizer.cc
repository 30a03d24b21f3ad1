#include "runtime/inner_optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace isthmus::runtime {
namespace {

constexpr std::int64_t kDecayShare = 5;  // wsd's last part of the run, where nothing is said

// What is left of the way from the peak to the final rate, 1 to 0.
double height(const RateSchedule& schedule, double t) {
  const auto steps = static_cast<double>(schedule.steps);
  const double done = steps > 0 ? std::min(1.0, t / steps) : 0.0;
  switch (schedule.shape) {
    case RateShape::cosine:
      return 0.5 * (1 + std::cos(std::numbers::pi * done));
    case RateShape::linear:
      return 1 - done;
    case RateShape::constant:
      return 1;
    case RateShape::wsd:
      break;
  }
  const auto decay = schedule.decay_steps > 0 ? schedule.decay_steps : schedule.steps / kDecayShare;
  if (decay == 0) return 1;
  return std::clamp((steps - t) / static_cast<double>(decay), 0.0, 1.0);
}

}  // namespace

double RateSchedule::rate(std::int64_t step) const {
  const auto t = static_cast<double>(step);
  const double warm =
      warmup_steps > 0 ? std::min(1.0, (t + 1) / static_cast<double>(warmup_steps)) : 1.0;
  return peak * warm * (final_fraction + (1 - final_fraction) * height(*this, t));
}

}  // namespace isthmus::runtime

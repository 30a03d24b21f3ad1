#include "runtime/inner_optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace isthmus::runtime {

double RateSchedule::rate(std::int64_t step) const {
  const auto t = static_cast<double>(step);
  const double warm =
      warmup_steps > 0 ? std::min(1.0, (t + 1) / static_cast<double>(warmup_steps)) : 1.0;
  const double done = steps > 0 ? std::min(1.0, t / static_cast<double>(steps)) : 0.0;
  const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * done));
  return peak * warm * (final_fraction + (1 - final_fraction) * cosine);
}

}  // namespace isthmus::runtime

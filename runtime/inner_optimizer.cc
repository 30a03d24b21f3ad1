#include "runtime/inner_optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

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

SpikeGuard::SpikeGuard(std::vector<double> norms) : norms_(std::move(norms)) {
  if (norms_.size() > kNorms)
    norms_.erase(norms_.begin(), norms_.end() - static_cast<std::ptrdiff_t>(kNorms));
  norms_.reserve(kNorms + 1);
}

double SpikeGuard::limit(double multiple) const {
  if (multiple <= 0 || norms_.size() < kNormsMin) return 0;
  std::array<double, kNorms> sorted;
  const auto end = std::copy(norms_.begin(), norms_.end(), sorted.begin());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(norms_.size() / 2);
  std::nth_element(sorted.begin(), middle, end);
  return multiple * *middle;
}

void SpikeGuard::add(double gradient_norm) {
  norms_.reserve(kNorms + 1);
  norms_.push_back(gradient_norm);
  if (norms_.size() > kNorms) norms_.erase(norms_.begin());
}

}  // namespace isthmus::runtime

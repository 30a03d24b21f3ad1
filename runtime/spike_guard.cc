#include "runtime/spike_guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace isthmus::runtime {

SpikeGuard::SpikeGuard(double multiple, std::vector<double> norms)
    : multiple_(multiple), norms_(std::move(norms)) {
  if (norms_.size() > kNorms)
    norms_.erase(norms_.begin(), norms_.end() - static_cast<std::ptrdiff_t>(kNorms));
  norms_.reserve(kNorms + 1);
}

double SpikeGuard::limit() const {
  if (multiple_ <= 0 || norms_.size() < kNormsMin) return 0;
  std::array<double, kNorms> sorted;
  const auto end = std::copy(norms_.begin(), norms_.end(), sorted.begin());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(norms_.size() / 2);
  std::nth_element(sorted.begin(), middle, end);
  return multiple_ * *middle;
}

std::string SpikeGuard::note(const UpdateReport& update) {
  if (!update.finite) return "a gradient is NaN or infinite";
  const double usual_max = limit();
  if (multiple_ > 0) norms_.push_back(update.gradient_norm);
  if (norms_.size() > kNorms) norms_.erase(norms_.begin());
  if (update.applied) return {};
  return fmt::format("the gradient norm {:.4g} is above {:.4g}, {:g} times the usual one",
                     update.gradient_norm, usual_max, multiple_);
}

}  // namespace isthmus::runtime

#include "runtime/routing_report.h"

#include <algorithm>
#include <numeric>

namespace isthmus::runtime {

std::uint64_t RoutingReport::choices() const {
  return std::accumulate(chosen.begin(), chosen.end(), std::uint64_t{0});
}

double RoutingReport::dropped_share() const {
  const auto all = choices();
  return all == 0 ? 0 : static_cast<double>(dropped) / static_cast<double>(all);
}

double RoutingReport::imbalance() const {
  double worst = 0;
  for (std::size_t layer = 0; layer < layers(); ++layer) {
    const auto first = chosen.begin() + static_cast<std::ptrdiff_t>(layer * experts);
    const auto end = first + static_cast<std::ptrdiff_t>(experts);
    const auto all = std::accumulate(first, end, std::uint64_t{0});
    if (all > 0)
      worst = std::max(worst, static_cast<double>(*std::max_element(first, end) * experts) /
                                  static_cast<double>(all));
  }
  return worst;
}

void RoutingReport::clear() {
  std::ranges::fill(chosen, 0);
  dropped = 0;
  balance_loss = z_loss = 0;
}

}  // namespace isthmus::runtime

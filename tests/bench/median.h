// The median of what a benchmark has timed.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace isthmus::bench {

// NaN of nothing.
inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  const auto half = values.size() / 2;
  return values.empty() ? std::nan("") : (values[half] + values[(values.size() - 1) / 2]) / 2;
}

}  // namespace isthmus::bench

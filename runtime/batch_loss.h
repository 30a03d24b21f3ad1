// BatchLoss: cross-entropy in nats, summed over the counted targets, and their number. The loss of
// a global batch is the sum of sums over the sum of counts, across micro-batches and ranks.
#pragma once

#include <cstdint>

namespace isthmus::runtime {

// Targets with this value are not counted and give no gradient.
inline constexpr std::int32_t kIgnoredTarget = -100;

struct BatchLoss {
  double sum = 0;
  std::int64_t counted = 0;

  BatchLoss& operator+=(const BatchLoss& other) {
    sum += other.sum;
    counted += other.counted;
    return *this;
  }
};

}  // namespace isthmus::runtime

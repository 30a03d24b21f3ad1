// RateLimit: `rate_limit` of a gateway: a bucket over all bytes it sends, on all links. Bulk waits
// for its turn; control goes at once and is paid for by the bulk behind it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace isthmus::inter {

class RateLimit {
 public:
  // 0: no limit.
  explicit RateLimit(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // When a message of this size may leave: once the bucket has filled by its size since everything
  // before it left. So `bytes` take at least bytes / rate, from the first reservation on. What goes
  // at once all the same is paid for by it.
  Nanoseconds reserve(Nanoseconds now, std::size_t bytes) {
    if (bytes_per_second_ <= 0) return now;
    free_at_ = std::max(free_at_, now) + cost(bytes);
    return free_at_;
  }
  // What was reserved does not leave. Those behind it keep the places that they have.
  void give_back(std::size_t bytes) { free_at_ -= cost(bytes); }
  // Holds from now on (0: no limit). Whoever has a place that is yet to come reserves it anew.
  void set_rate(Nanoseconds now, double bytes_per_second) {
    bytes_per_second_ = bytes_per_second;
    free_at_ = now;
  }
  // For what leaves now or not at all: whether the bucket has filled by its size already, and that
  // it left.
  bool may_leave(Nanoseconds now, std::size_t bytes) const { return free_at_ + cost(bytes) <= now; }
  void left(Nanoseconds now) { free_at_ = now; }
  // Nothing that left, or has a place, is yet to be paid for.
  bool idle(Nanoseconds now) const { return may_leave(now, 0); }
  double bytes_per_second() const { return bytes_per_second_; }
  // The time that they take, alone.
  Nanoseconds cost(std::size_t bytes) const {
    if (bytes_per_second_ <= 0) return 0;
    return static_cast<Nanoseconds>(static_cast<double>(bytes) / bytes_per_second_ * 1e9);
  }

 private:
  double bytes_per_second_;
  Nanoseconds free_at_ = 0;
};

}  // namespace isthmus::inter

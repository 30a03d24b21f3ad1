// RateLimit: `rate_limit` of a gateway: one place after another on a line of that rate, for all
// bytes that it sends, on all links. A chunk begins to leave when its place does, and no
// connection is faster than pace(): so no more than the rate leaves at any moment, but for a
// connection's first ten packets, and what queues on the way is others'. Control goes at once and
// is paid for by the bulk behind it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace isthmus::inter {

class RateLimit {
 public:
  // 0: no limit.
  explicit RateLimit(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // The end of the place of a message of this size, which begins cost(bytes) before: behind
  // everything that has one. Who cannot send at a pace sends only there.
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
  // For what leaves now or not at all: whether a place of its size has passed already since the
  // last one, and that it left.
  bool may_leave(Nanoseconds now, std::size_t bytes) const { return free_at_ + cost(bytes) <= now; }
  void left(Nanoseconds now) { free_at_ = now; }
  // Nothing that left, or has a place, is yet to be paid for.
  bool idle(Nanoseconds now) const { return may_leave(now, 0); }
  double bytes_per_second() const { return bytes_per_second_; }
  // Of one connection, at most: a little more than the rate, so that it never falls behind the
  // places. Nothing: as fast as it can.
  std::optional<double> pace() const {
    constexpr double kAhead = 1.02;
    return bytes_per_second_ > 0 ? std::optional(kAhead * bytes_per_second_) : std::nullopt;
  }
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

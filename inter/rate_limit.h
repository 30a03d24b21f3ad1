// RateLimit: `rate_limit` of a gateway: one place after another on a line of that rate, for all
// bytes that it sends, on all links. A chunk is handed over when its place begins, and the wire
// spreads it over that (Wire::limit_bulk), so that no chunk is a burst. Control goes at once and is
// paid for by the bulk behind it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace isthmus::inter {

class RateLimit {
 public:
  // 0: no limit.
  explicit RateLimit(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // The end of the place of a message of this size, which begins cost(bytes) before: behind
  // everything that has one. Who cannot spread it sends it only there.
  Nanoseconds reserve(Nanoseconds now, std::size_t bytes) {
    if (bytes_per_second_ <= 0) return now;
    free_at_ = std::max(free_at_, now) + cost(bytes);
    return free_at_;
  }
  // What was reserved does not leave. Those behind it keep the places that they have.
  void give_back(std::size_t bytes) { free_at_ -= cost(bytes); }
  // Holds from now on (0: no limit). Whoever has a place that is yet to come reserves it anew; who
  // had one that has come gives nothing back.
  void set_rate(Nanoseconds now, double bytes_per_second) {
    bytes_per_second_ = bytes_per_second;
    free_at_ = now;
  }
  // Nothing that left, or has a place, is yet to be paid for.
  bool idle(Nanoseconds now) const { return free_at_ <= now; }
  double bytes_per_second() const { return bytes_per_second_; }
  // In how long pieces a chunk is spread: of a quarter of a second, so that another rate holds
  // soon, and of a TLS record at most, of a packet at least.
  std::size_t piece_bytes() const {
    constexpr double kPacket = 1400, kRecord = 1 << 14;
    return static_cast<std::size_t>(std::clamp(bytes_per_second_ / 4, kPacket, kRecord));
  }
  // Of all that is spread: a little more than the rate, so that it never falls behind the places,
  // while it catches up with them after a pause of the line. Nothing: there is no limit.
  std::optional<double> spread() const {
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

// RateLimit: `rate_limit` of a gateway: one place after another on a line of that rate, for all
// bytes that it sends, on all links. A chunk is handed over when its place begins, and the wire
// spreads it over that (Wire::limit_bulk), so that no chunk is a burst. Control goes at once and is
// paid for by the bulk behind it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace isthmus::inter {

class RateLimit {
 public:
  // 0: no limit.
  explicit RateLimit(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // When the place of a message of this size begins: behind everything that has one.
  Nanoseconds reserve(Nanoseconds now, std::size_t bytes) {
    if (bytes_per_second_ <= 0) return now;
    const auto begins = std::max(free_at_, now);
    free_at_ = begins + cost(bytes);
    return begins;
  }
  // Control goes at once, and what has no place yet waits for what it takes: for half a minute at
  // most, since what is above the limit for long could never be paid for, and a peer bears no
  // longer silence within a message.
  void pay(Nanoseconds now, std::size_t bytes) {
    if (bytes_per_second_ <= 0) return;
    constexpr auto kDebtMax = 30 * kSecond;
    const auto most = std::max(free_at_, now + kDebtMax);
    free_at_ = std::min(std::max(free_at_, now) + cost(bytes), most);
  }
  // Of so many bytes the first ones, and when they leave: at the end of their place, so that no
  // more ever has than the rate allows. A quarter of a second of them, so that another rate holds
  // soon, a TLS record at most, and a packet at least.
  struct Piece {
    Nanoseconds leaves = 0;
    std::size_t bytes = 0;
  };
  Piece reserve_piece(Nanoseconds now, std::size_t bytes) {
    if (bytes_per_second_ <= 0) return {now, bytes};
    constexpr double kPacket = 1400, kRecord = 1 << 14;
    const auto most = std::clamp(bytes_per_second_ / 4, kPacket, kRecord);
    bytes = std::min(bytes, static_cast<std::size_t>(most));
    return {reserve(now, bytes) + cost(bytes), bytes};
  }
  // What was reserved does not leave, or other bytes in its place. Those behind it keep the places
  // that they have.
  void give_back(std::size_t bytes, std::size_t instead = 0) {
    free_at_ += cost(instead) - cost(bytes);
  }
  // Holds from now on (0: no limit). Whoever has a place that is yet to come reserves it anew; who
  // had one that has come gives nothing back.
  void set_rate(Nanoseconds now, double bytes_per_second) {
    bytes_per_second_ = bytes_per_second;
    free_at_ = now;
  }
  // Nothing that left, or has a place, is yet to be paid for.
  bool idle(Nanoseconds now) const { return free_at_ <= now; }
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

// BulkWidth: how many TCP connections bulk to one peer should use. One suffices where BBR is in
// force. A congestion control that takes each loss for a full line leaves most of a lossy one
// unused, and one connection's buffers are too small for a long fat one: then connections are added
// while goodput grows by more than a tenth.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace isthmus::inter {

class BulkWidth {
 public:
  static constexpr std::uint32_t kAtFirst = 4;  // without BBR
  static constexpr double kGrowth = 1.1;

  explicit BulkWidth(std::uint32_t most) : most_(most) {}

  // Whether several may be better than one, as the connections that are there tell.
  void may_grow(bool may);
  std::uint32_t wanted() const { return wanted_; }

  // Every connection is full; or not any more. Goodput counts while they are.
  void full(Nanoseconds now, bool is);
  // Bytes that the peer has acknowledged, while `connections` were there.
  void arrived(Nanoseconds now, std::uint64_t bytes, std::uint32_t connections,
               Nanoseconds round_trip);

 private:
  // Less tells more of the moment than of the line.
  static constexpr Nanoseconds kStretchMin = kSecond;
  static constexpr int kStretchRoundTrips = 8;
  static constexpr std::uint32_t kArrivalsPerConnection = 2;
  // The line may have become another one.
  static constexpr Nanoseconds kAgain = 300 * kSecond;

  void begin_stretch(Nanoseconds now);
  Nanoseconds full_time(Nanoseconds now) const;

  const std::uint32_t most_;
  std::uint32_t wanted_ = 1;
  bool may_grow_ = false;
  bool settled_ = false;
  Nanoseconds settled_at_ = 0;
  double goodput_before_ = 0;  // with fewer connections, bytes per second

  // Since as many connections as wanted were there: what comes first was sent before.
  std::uint32_t connections_ = 0;
  Nanoseconds warm_until_ = 0;
  Nanoseconds full_ = 0;  // before full_since_
  bool is_full_ = false;
  Nanoseconds full_since_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint32_t arrivals_ = 0;
};

}  // namespace isthmus::inter

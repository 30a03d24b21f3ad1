#include "inter/polite_rate.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace isthmus::inter {

namespace {

constexpr double kFirstWindow = 10;  // segments, as TCP's own (RFC 6928)
constexpr double kLeastWindow = 2;   // segments (RFC 6817, 2.4.2: MIN_CWND)
// Of what fills the line. Of segments that come one by one the round trip holds more of the
// receiver's timers than of the queue.
constexpr double kLeastShare = 0.04;
constexpr Nanoseconds kAckDelay = 40 * kMillisecond;  // Linux' least (RFC 1122, 4.2.3.2)
constexpr double kLossCounts = 0.02;                  // of a round trip's segments
constexpr double kUsedPolitely = 0.7;   // of its pace: else something else is what bounds it
constexpr int kUndisturbed = 8;         // round trips: as long as a cycle in which bbr probes
constexpr double kGrowthPerLook = 1.5;  // of the growth, once undisturbed for long
constexpr double kGrowthMax = 0.05;     // of the window
constexpr double kGrowthFar = 0.15;     // below half of what filled the line before
constexpr double kQueueSeen = -0.75;    // beyond the target: a quarter of it
constexpr int kStuckLooks = 30;
constexpr int kHold = 2;  // looks until what was done shows
constexpr Nanoseconds kSlowEvery = 10 * kSecond;
constexpr int kSlowLooks = 2;
constexpr double kSlow = 0.25;

constexpr Nanoseconds kBaseSpan = 60 * kSecond;

}  // namespace

Nanoseconds PoliteRate::next_look() const {
  constexpr Nanoseconds kSoonest = 10 * kMillisecond;
  constexpr Nanoseconds kLatest = 250 * kMillisecond;
  return std::clamp(round_trip_, kSoonest, kLatest);
}

void PoliteRate::note_base(const Sample& sample) {
  const auto minute = sample.now / kBaseSpan;
  if (minute_ < 0 || minute - minute_ >= static_cast<std::int64_t>(minutes_.size())) {
    minutes_.fill(0);
    minute_ = minute;
  }
  while (minute_ < minute) minutes_[static_cast<std::size_t>(++minute_) % minutes_.size()] = 0;
  auto& least = minutes_[static_cast<std::size_t>(minute_) % minutes_.size()];
  if (least == 0 || sample.round_trip < least) least = sample.round_trip;
  base_ = sample.round_trip_min > 0 ? sample.round_trip_min : sample.round_trip;
  for (const auto of_minute : minutes_)
    if (of_minute > 0) base_ = std::min(base_, of_minute);
}

void PoliteRate::look(const Sample& sample) {
  if (sample.round_trip <= 0 || sample.segment_bytes == 0) return;
  const double segment = sample.segment_bytes;
  if (window_ == 0) window_ = kFirstWindow * segment;
  const auto before = std::exchange(last_, sample);
  const auto acknowledged = sample.acknowledged_bytes - before.acknowledged_bytes;
  round_trip_ = sample.round_trip;
  const auto took = seconds_of(sample.now - before.now);
  if (before.now != 0 && acknowledged > 0) {
    note_base(sample);
    // A receiver acknowledges a lone segment when the next one comes, or after a while.
    const auto lone = static_cast<Nanoseconds>(segment / rate_ * 1e9);
    delay_ = std::max<Nanoseconds>(sample.round_trip - base_ - std::min(lone, kAckDelay), 0);
    target_ = std::clamp(base_ / 4, kTargetMin, kTargetMax);
    const auto sent = sample.segments_sent - before.segments_sent;
    const auto resent = sample.segments_resent - before.segments_resent;
    const bool lossy =
        resent > 2 && static_cast<double>(resent) > kLossCounts * static_cast<double>(sent);
    const double achieved = static_cast<double>(acknowledged) / took;
    const double over = static_cast<double>(delay_) / static_cast<double>(target_) - 1;
    const bool fast = starting_ || undisturbed_ > kUndisturbed;
    if (slow_left_ > 0) {
      --slow_left_;
      hold_ = kHold;
    } else if (hold_ > 0) {
      --hold_;
    } else if (lossy || over > (fast ? kQueueSeen : 0)) {
      // What would pass with half the target in the queue; less where others fill it too.
      const double alone = achieved * seconds_of(base_ + target_ / 2);
      const double yielding = achieved * seconds_of(round_trip_) * std::max(0.5, 1 - over / 2);
      // Where not even its least gets through, the line is another one than it was.
      const bool stuck = window_ <= least_window(segment) && achieved < kUsedPolitely * rate_;
      stuck_ = stuck ? stuck_ + 1 : 0;
      if (fast || stuck_ >= kStuckLooks) filled_ = alone;
      shrink(lossy ? window_ / 2 : std::min(alone, yielding));
    } else if (achieved > kUsedPolitely * rate_) {
      grow(segment);
    }
    undisturbed_ = over > kQueueSeen || lossy ? 0 : undisturbed_ + 1;
    if (slow_next_ == 0) slow_next_ = sample.now + kSlowEvery;
    if (sample.now >= slow_next_) {
      slow_next_ = sample.now + kSlowEvery;
      slow_left_ = kSlowLooks;
    }
  } else if (acknowledged == 0) {
    slow_next_ = 0;  // idle: nothing of it is in any queue
  }
  const double least = least_window(segment);
  window_ = std::max(window_, least);
  rate_ = std::max(least, (slow_left_ > 0 ? kSlow : 1) * window_) / seconds_of(round_trip_);
}

double PoliteRate::least_window(double segment) const {
  return std::max(kLeastWindow * segment, kLeastShare * filled_);
}

void PoliteRate::grow(double segment) {
  if (starting_) {
    window_ *= 2;
    return;
  }
  const auto faster = std::pow(kGrowthPerLook, std::max(0, undisturbed_ - kUndisturbed));
  const auto most = window_ * (window_ < filled_ / 2 ? kGrowthFar : kGrowthMax);
  window_ += std::min(segment * faster, std::max(segment, most));
}

void PoliteRate::shrink(double window) {
  starting_ = false;
  hold_ = kHold;
  window_ = std::min(window_, window);
}

}  // namespace isthmus::inter

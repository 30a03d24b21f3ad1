#include "inter/bulk_width.h"

#include <algorithm>

namespace isthmus::inter {

void BulkWidth::widen_to(Most most) {
  if (most == most_) return;
  most_ = most;
  const auto wanted = most == Most::one ? 1 : most == Most::some ? kSome : kManyAtFirst;
  wanted_ = enough_ = std::min(wanted, limit_);
  settled_ = most != Most::many;
  goodput_before_ = 0;
  connections_ = 0;
}

void BulkWidth::full(Nanoseconds now, bool is) {
  if (is == is_full_) return;
  is_full_ = is;
  if (is)
    full_since_ = now;
  else
    full_ += now - full_since_;
}

Nanoseconds BulkWidth::full_time(Nanoseconds now) const {
  return full_ + (is_full_ ? now - full_since_ : 0);
}

void BulkWidth::begin_stretch(Nanoseconds now) {
  full_ = 0;
  full_since_ = now;
  bytes_ = 0;
  arrivals_ = 0;
}

void BulkWidth::settle(Nanoseconds now) {
  settled_ = true;
  settled_at_ = now;
}

void BulkWidth::arrived(Nanoseconds now, std::uint64_t bytes, std::uint32_t connections,
                        Nanoseconds round_trip) {
  if (most_ != Most::many) return;
  if (settled_ && now - settled_at_ >= kAgain) {
    settled_ = false;
    goodput_before_ = 0;
    connections_ = 0;
  }
  if (connections < wanted_) return;
  const auto stretch = std::max(kStretchMin, kStretchRoundTrips * round_trip);
  if (connections_ != connections) {
    connections_ = connections;
    warm_until_ = now + stretch;  // the new ones begin slowly
    begin_stretch(now);
  }
  if (now < warm_until_) return begin_stretch(now);
  bytes_ += bytes;
  ++arrivals_;
  const auto time = full_time(now);
  if (time < stretch || arrivals_ < kArrivals) return;
  const auto goodput = static_cast<double>(bytes_) / seconds_of(time);
  const auto windows = goodput * seconds_of(round_trip) / kWindowBytesMin;
  if (!settled_) {
    if (goodput <= kGrowth * goodput_before_ || wanted_ == limit_ || windows < wanted_)
      settle(now);
    else
      wanted_ = std::min(2 * wanted_, limit_);
    goodput_before_ = goodput;
  }
  enough_ = static_cast<std::uint32_t>(std::clamp(
      windows, static_cast<double>(std::min(kSome, wanted_)), static_cast<double>(wanted_)));
  begin_stretch(now);
}

}  // namespace isthmus::inter

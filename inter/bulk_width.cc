#include "inter/bulk_width.h"

#include <algorithm>

namespace isthmus::inter {

void BulkWidth::may_grow(bool may) {
  if (may == may_grow_) return;
  may_grow_ = may;
  wanted_ = may ? std::min(kAtFirst, most_) : 1;
  settled_ = false;
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

void BulkWidth::arrived(Nanoseconds now, std::uint64_t bytes, std::uint32_t connections,
                        Nanoseconds round_trip) {
  if (!may_grow_) return;
  if (settled_ && now - settled_at_ >= kAgain) {
    settled_ = false;
    goodput_before_ = 0;
    connections_ = 0;
  }
  if (settled_ || connections < wanted_) return;
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
  if (time < stretch || arrivals_ < kArrivalsPerConnection * connections) return;
  const auto goodput = static_cast<double>(bytes_) / seconds_of(time);
  if (wanted_ < most_ && goodput > kGrowth * goodput_before_) {
    goodput_before_ = goodput;
    wanted_ = std::min(2 * wanted_, most_);
  } else {
    settled_ = true;
    settled_at_ = now;
  }
}

}  // namespace isthmus::inter

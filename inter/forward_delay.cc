#include "inter/forward_delay.h"

#include <algorithm>

namespace isthmus::inter {

namespace {

constexpr Nanoseconds kMoment = 300 * kMillisecond;
constexpr Nanoseconds kFresh = kSecond;
constexpr Nanoseconds kClockMax = INT64_MAX / 4;  // so that differences of differences have room
constexpr Nanoseconds kMinute = 60 * kSecond;

}  // namespace

void ForwardDelay::add(Nanoseconds now, Nanoseconds left, Nanoseconds arrived,
                       Nanoseconds round_trip) {
  if (arrived < 0 || arrived > kClockMax || left < 0 || left > kClockMax) return;
  const Delays delays{arrived - left, round_trip};
  lately_.emplace_back(now, delays);
  while (lately_.front().first < now - kMoment) lately_.pop_front();
  const auto minute = now / kMinute;
  for (auto passed = std::min<std::int64_t>(minute - minute_, std::ssize(minutes_)); passed > 0;
       --passed) {
    std::shift_right(minutes_.begin(), minutes_.end(), 1);
    minutes_.front().reset();
  }
  minute_ = minute;
  auto& least = minutes_.front();
  least = least ? Delays::least(*least, delays) : delays;
}

std::optional<ForwardDelay::Waits> ForwardDelay::waits(Nanoseconds now) const {
  if (lately_.empty() || lately_.back().first < now - kFresh) return std::nullopt;
  auto newest = lately_.front().second;
  for (const auto& [when, delays] : lately_) newest = Delays::least(newest, delays);
  auto least = newest;
  for (const auto& minute : minutes_)
    if (minute) least = Delays::least(least, *minute);
  return Waits{newest.apparent - least.apparent, newest.round_trip - least.round_trip};
}

}  // namespace isthmus::inter

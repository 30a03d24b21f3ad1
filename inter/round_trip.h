// RoundTrip: how long a peer takes to answer, smoothed as TCP does it (RFC 6298). The peer's word
// is not taken for it: only the echo of a stamp that was really sent counts, once, and a sample is
// no longer than the time since then. Deadlines of the whole group follow from the slowest link, so
// even a peer that is slow on purpose stretches them by a bounded time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>

#include "inter/learnt.h"

namespace isthmus::inter {

class RoundTrip {
 public:
  static constexpr Nanoseconds kSampleMax = 10 * kSecond;  // what takes longer counts as this

  void stamp_sent(Nanoseconds stamp) {
    if (!stamps_.empty() && stamps_.back() >= stamp) return;
    stamps_.push_back(stamp);
    if (stamps_.size() > kStampsMax) stamps_.pop_front();
  }
  // The peer says that `stamp` reached it `held` before it answered. What that took; nothing if it
  // cannot be.
  std::optional<Nanoseconds> echoed(Nanoseconds now, Nanoseconds stamp, Nanoseconds held) {
    const auto found = std::lower_bound(stamps_.begin(), stamps_.end(), stamp);
    if (found == stamps_.end() || *found != stamp) return std::nullopt;
    stamps_.erase(stamps_.begin(), found + 1);
    if (held < 0 || held > now - stamp) return std::nullopt;
    add(now, std::min(now - stamp - held, kSampleMax));
    return now - stamp - held;
  }
  void new_session() { stamps_.clear(); }

  Nanoseconds mean() const { return times_.mean(); }  // 0: not known yet
  Nanoseconds deviation() const { return times_.deviation(); }
  // Of single ones, within the last five to ten seconds; 0: there was none.
  Nanoseconds longest(Nanoseconds now) const {
    const auto age = now / kSpan - span_;
    return age == 0 ? std::max(longest_, longest_before_) : age == 1 ? longest_ : 0;
  }

 private:
  static constexpr std::size_t kStampsMax = 4096;
  static constexpr Nanoseconds kSpan = 5 * kSecond;

  void add(Nanoseconds now, Nanoseconds sample) {
    if (const auto span = now / kSpan; span != span_) {
      longest_before_ = span == span_ + 1 ? longest_ : 0;
      longest_ = 0;
      span_ = span;
    }
    longest_ = std::max(longest_, sample);
    times_.add(std::max<Nanoseconds>(sample, 1));
  }

  std::deque<Nanoseconds> stamps_;  // sent and not echoed, ascending
  Learnt times_;
  std::int64_t span_ = 0;                         // of time, the newest in which there was one
  Nanoseconds longest_ = 0, longest_before_ = 0;  // in it, and in the one before
};

}  // namespace isthmus::inter

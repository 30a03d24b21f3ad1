#include "inter/line_pace.h"

#include <algorithm>
#include <utility>

namespace isthmus::inter {

namespace {

constexpr double kAtFirst = 1.1;
constexpr double kDrain = 0.8;
constexpr double kHold = 1.02;
constexpr double kSame = 1.1;         // what is sent and what arrives
constexpr double kUsed = 0.9;         // of the pace: else something else is what bounds it
constexpr double kFaster = 0.05;      // a round trip
constexpr double kLong = 0.75;        // of the target: still to be drained
constexpr double kShort = 0.25;       // of the target
constexpr int kShortRoundTrips = 12;  // a BBR connection probes once in eight
constexpr Nanoseconds kOthersKept = 10 * kSecond;
constexpr Nanoseconds kTargetMin = 50 * kMillisecond;
constexpr Nanoseconds kStretchMin = 100 * kMillisecond;
constexpr std::uint64_t kBytesMin = 32'000;
// Below it scheduling has more of a round trip than queues.
constexpr Nanoseconds kBaseMin = 2 * kMillisecond;
// The line may have become another one, or the route.
constexpr Nanoseconds kForget = 60 * kSecond;

Nanoseconds times(double factor, Nanoseconds time) {
  return static_cast<Nanoseconds>(factor * static_cast<double>(time));
}

}  // namespace

Nanoseconds LinePace::next_look() const {
  return std::clamp(base_ / 4, 10 * kMillisecond, 50 * kMillisecond);
}

Nanoseconds LinePace::stretch() const { return std::max(kStretchMin, 2 * round_trip_); }

Nanoseconds LinePace::target() const { return std::max(base_, kTargetMin); }

void LinePace::begin(Nanoseconds now) {
  if (now - looked_ > kForget) line_ = 0;
  pace_ = line_ > 0 ? std::optional(kAtFirst * line_) : std::nullopt;
  carried_ = 0;
  moments_.clear();
  counts_from_ = now + 3 * base_ / 2;
  draining_ = drained_ = false;
  short_since_.reset();
}

void LinePace::look(const Sample& sample) {
  looked_ = sample.now;
  if (sample.round_trip <= 0) return;
  note_base(sample);
  if (base_ < kBaseMin) return pace_.reset();
  if (sample.now < counts_from_) return;
  measure(sample);
  if (carried_ == 0) return;
  if (draining_)
    drain(sample);
  else if (queue_ > target())
    begin_draining(sample);
  else
    follow(sample);
}

void LinePace::note_base(const Sample& sample) {
  round_trip_ = sample.round_trip;
  base_ = sample.round_trip_min > 0 ? std::min(sample.round_trip_min, round_trip_) : round_trip_;
  others_ = sample.now < others_until_ ? std::min(others_, round_trip_ - base_) : 0;
  queue_ = round_trip_ - base_ - others_;
}

void LinePace::measure(const Sample& sample) {
  moments_.push_back({sample.now, sample.delivered_bytes, round_trip_});
  while (moments_.size() > 2 && sample.now - moments_[1].time >= stretch()) moments_.pop_front();
  const auto& first = moments_.front();
  const auto took = sample.now - first.time;
  const auto bytes = sample.delivered_bytes - first.delivered_bytes;
  if (took < stretch() || bytes < kBytesMin) return;
  carried_ = static_cast<double>(bytes) / seconds_of(took);
  if (draining_) return;
  // Where the round trip gets shorter, more arrives than the line carries.
  const auto sooner = std::max<Nanoseconds>(first.round_trip - round_trip_, 0);
  line_ = std::max(line_, static_cast<double>(bytes) / seconds_of(took + sooner));
}

void LinePace::begin_draining(const Sample& sample) {
  draining_ = true;
  drain_began_ = sample.now;
  short_since_.reset();
  pace_ = kDrain * carried_;
}

void LinePace::drain(const Sample& sample) {
  // What arrives while there is a queue is what the line carries.
  pace_ = std::max(*pace_, kDrain * carried_);
  if (queue_ <= times(kLong, target())) return end_draining();
  if (sample.now - drain_began_ <= round_trip_ + stretch() || carried_ > kSame * *pace_) return;
  others_ = round_trip_ - base_;
  others_until_ = sample.now + kOthersKept;
  end_draining();
}

void LinePace::end_draining() {
  draining_ = false;
  drained_ = true;
  pace_ = line_ = *pace_ / kDrain;
}

void LinePace::follow(const Sample& sample) {
  if (queue_ >= times(kShort, target())) {
    short_since_.reset();
    if (drained_) pace_ = std::min(*pace_, kHold * carried_);
    return;
  }
  if (!pace_) return;
  if (!short_since_) short_since_ = sample.now;
  if (sample.now - *short_since_ >= kShortRoundTrips * round_trip_) {
    pace_.reset();
    drained_ = false;
    short_since_.reset();
  } else if (sample.full && carried_ >= kUsed * *pace_) {
    *pace_ *= 1 + kFaster * static_cast<double>(next_look()) / static_cast<double>(round_trip_);
  }
}

}  // namespace isthmus::inter

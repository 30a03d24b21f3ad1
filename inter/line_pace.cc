#include "inter/line_pace.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/assert.h"

namespace isthmus::inter {

namespace {

constexpr double kFastest = 1.1;  // of the line: so the queue comes back when the line is faster
constexpr double kLeastOfLine = 0.75;
constexpr double kGain = 0.5;     // settles within two round trips; feedback takes one and a half
constexpr double kSlowed = 0.8;   // so much slower than the line that a queue of ours gets shorter
constexpr double kSame = 1.1;     // what is sent and what arrives
constexpr double kShorter = 0.8;  // a queue that something was done about
constexpr double kUsed = 0.9;     // of the pace: else something else is what bounds it
constexpr double kTarget = 0.25;  // of the shortest round trip
constexpr Nanoseconds kTargetMin = 10 * kMillisecond;
constexpr Nanoseconds kTargetMax = 50 * kMillisecond;
constexpr Nanoseconds kGainOverMin = 25 * kMillisecond;
constexpr int kShortRoundTrips = 8;
constexpr Nanoseconds kOthersKept = 10 * kSecond;
constexpr Nanoseconds kStretchMin = 100 * kMillisecond;
constexpr int kLessRoundTrips = 8;
constexpr Nanoseconds kLessMin = kSecond;
constexpr double kLessAtOnce = 0.1;  // of the line; TCP has losses of a pause to mend at first
// Without any arrival the line stands still, and nobody can tell what it carries.
constexpr Nanoseconds kStandsStill = kSecond;
constexpr Nanoseconds kArrivalsApart = kSecond / 4;  // and yet bytes come all the time
constexpr std::uint64_t kBytesMin = 32'000;
constexpr std::uint64_t kShortBytesMin = 1'000'000;  // acknowledgements of less come in few bursts
// Below it scheduling has more of a round trip than queues.
constexpr Nanoseconds kBaseMin = 2 * kMillisecond;
constexpr double kNoLimit = std::numeric_limits<double>::infinity();

Nanoseconds times(double factor, Nanoseconds time) {
  return static_cast<Nanoseconds>(factor * static_cast<double>(time));
}

}  // namespace

Nanoseconds LinePace::next_look() const {
  return std::clamp(base_ / 4, 10 * kMillisecond, 50 * kMillisecond);
}

// Acknowledgements that waited come in bursts: they even out over what they may have waited.
Nanoseconds LinePace::stretch() const {
  return std::max(kStretchMin, base_ + 2 * (round_trip_ - base_));
}

Nanoseconds LinePace::target() const {
  return std::clamp(times(kTarget, base_), kTargetMin, kTargetMax);
}

void LinePace::begin(Nanoseconds now) {
  free_ = line_ == 0;
  queue_ = 0;
  paces_.clear();
  set_pace(now, free_ ? std::nullopt : std::optional(paced()));
  carried_ = 0;
  moments_.clear();
  less_ = 0;
  less_for_ = 0;
  delivered_at_ = now;
  counts_from_ = now + (hurries() ? base_ + base_ / 8 : 3 * base_ / 2);
  queued_since_.reset();
  slowed_since_.reset();
  short_since_.reset();
  doubt_.reset();
}

void LinePace::look(const Sample& sample) {
  if (sample.round_trip <= 0) return;
  note_pause(sample.now);
  note_base(sample);
  if (base_ < kBaseMin) return set_pace(sample.now, std::nullopt);
  if (sample.now < counts_from_) return;
  measure(sample);
  if (carried_ == 0) return;
  look_for_others(sample);
  choose(sample);
}

void LinePace::set_pace(Nanoseconds now, std::optional<double> pace) {
  ISTHMUS_ASSERT(!pace || *pace > 0);
  pace_ = pace;
  if (paces_.empty() || paces_.back().second != pace) paces_.emplace_back(now, pace);
  // What is asked for is the past from here on, with the pace in which that begins.
  const auto from = now - 2 * round_trip_ - stretch();
  while (paces_.size() > 1 && paces_[1].first <= from) paces_.pop_front();
}

void LinePace::note_pause(Nanoseconds now) {
  const auto pause = now - std::exchange(delivered_at_, now);
  less_for_ += std::min(pause, kArrivalsApart);
  if (pause <= kStandsStill + 4 * round_trip_) return;
  moments_.clear();
  less_ = 0;
  less_for_ = 0;
}

void LinePace::note_base(const Sample& sample) {
  round_trip_ = sample.round_trip;
  base_ = sample.round_trip_min > 0 ? std::min(sample.round_trip_min, round_trip_) : round_trip_;
  if (sample.now >= others_until_) others_ = 0;
  queue_ = std::max<Nanoseconds>(round_trip_ - base_ - others_, 0);
  waits_known_ = sample.waits.has_value();
  if (waits_known_) queue_ = std::min(queue_, *sample.waits);
  if (queue_ < target() / 2)
    queued_since_.reset();
  else if (!queued_since_)
    queued_since_ = sample.now;
}

void LinePace::measure(const Sample& sample) {
  // With nothing left to send and no queue less arrives than the line carries.
  if (!sample.full && queue_ < target()) moments_.clear();
  const auto waited = round_trip_ - base_;
  moments_.push_back({sample.now, sample.delivered_bytes, round_trip_,
                      waited - std::min(sample.waits.value_or(waited), waited)});
  const auto suffices = [&](const Moment& from) {
    return sample.now - from.time >= stretch() &&
           sample.delivered_bytes - from.delivered_bytes >= kBytesMin;
  };
  while (moments_.size() > 2 && suffices(moments_[1])) moments_.pop_front();
  if (const auto* first = hurries() ? first_of_short_stretch(sample) : nullptr)
    // Acknowledgements that wait for longer and longer come more slowly than what they tell of.
    note_arrivals(*first, std::max<Nanoseconds>(moments_.back().wait_back - first->wait_back, 0));
  else if (suffices(moments_.front()))
    note_arrivals(moments_.front(), 0);
}

// What is sent as fast as can be may be over before a whole stretch of its acknowledgements is:
// where it is known whose queue there is, a round trip with one tells of a fast line too.
const LinePace::Moment* LinePace::first_of_short_stretch(const Sample& sample) const {
  if (!queued_since_) return nullptr;
  const auto first = std::ranges::find_if(
      moments_, [&](const Moment& moment) { return moment.time >= *queued_since_; });
  const bool suffices = first != moments_.end() &&
                        sample.now - first->time >= std::max(kStretchMin, base_) &&
                        sample.delivered_bytes - first->delivered_bytes >= kShortBytesMin;
  // Where acknowledgements wait for much less than before it tells little.
  return suffices && first->round_trip - round_trip_ <= (sample.now - first->time) / 4 ? &*first
                                                                                       : nullptr;
}

void LinePace::note_arrivals(const Moment& first, Nanoseconds later) {
  const auto& last = moments_.back();
  const auto bytes = static_cast<double>(last.delivered_bytes - first.delivered_bytes);
  const auto all = last.time - first.time, took = all - std::min(later, all / 2);
  carried_ = bytes / seconds_of(took);
  // Where acknowledgements wait for less and less, more arrives than the line carries.
  const auto sooner = std::max<Nanoseconds>(first.round_trip - last.round_trip, 0);
  at_least_ = bytes / seconds_of(took + sooner);
  note_carried(last.time);
}

void LinePace::note_carried(Nanoseconds now) {
  // Without a queue the line may carry more: that becomes a pace only once there was one.
  if (free_ && queue_ < target()) return;
  if (std::exchange(free_, false)) line_ = 0;  // it may have been another line
  if (!pace_ || carried_ >= kUsed * *pace_) {
    less_for_ = 0;
    less_ = 0;
  } else if (less_ = std::max(less_, at_least_);
             less_for_ >= std::max(kLessMin, kLessRoundTrips * base_)) {
    line_ = std::max(std::exchange(less_, 0), kLessAtOnce * line_);
    less_for_ = 0;
  }
  line_ = std::max(line_, std::min(at_least_, sent_at_most(now)));
}

// What arrives now was sent a round trip ago, or within the stretch before that.
double LinePace::sent_at_most(Nanoseconds now) const {
  double most = 0;
  for (const auto& [since, pace] : paces_) {
    if (since > now - base_) break;
    if (!pace) return kNoLimit;
    most = std::max(most, *pace);
  }
  return most > 0 ? most : kNoLimit;  // not known: it was before the first of them
}

double LinePace::paced() const {
  const auto over = seconds_of(queue_ - target()) / seconds_of(std::max(base_, kGainOverMin));
  return line_ * std::clamp(1 - kGain * over, kLeastOfLine, kFastest);
}

void LinePace::look_for_others(const Sample& sample) {
  const auto now = sample.now;
  if (free_ || paced() > kSlowed * line_) {
    slowed_since_.reset();
    doubt_.reset();
    return;
  }
  if (!slowed_since_) slowed_since_ = now;
  // What arrives while there is a queue of ours is what the line carries, whatever is sent; and
  // less than is sent if the line has become slower.
  if (now - *slowed_since_ <= round_trip_ + stretch() || carried_ > kSame * paced() ||
      carried_ < kUsed * paced())
    return;
  slowed_since_.reset();
  // What waits on its way there is ours, if the line carries less than is known, and gets less once
  // that is known; or it is others'.
  if (sample.waits && (!doubt_ || queue_ < times(kShorter, doubt_->queue))) {
    doubt_ = Doubt{doubt_ ? doubt_->line : line_, queue_};
    line_ = at_least_;
    return;
  }
  if (doubt_) line_ = std::exchange(doubt_, std::nullopt)->line;
  others_ = round_trip_ - base_;
  others_until_ = now + kOthersKept;
  queue_ = 0;
}

void LinePace::choose(const Sample& sample) {
  if (free_) return set_pace(sample.now, std::nullopt);
  if (queue_ >= target() / 2)
    short_since_.reset();
  else if (!short_since_)
    short_since_ = sample.now;
  set_pace(sample.now, paced());
  if (!sample.full || carried_ < kUsed * line_) short_since_.reset();
  if (!short_since_ || sample.now - *short_since_ < kShortRoundTrips * round_trip_) return;
  free_ = true;
  line_ = 0;
  set_pace(sample.now, std::nullopt);
  short_since_.reset();
}

}  // namespace isthmus::inter

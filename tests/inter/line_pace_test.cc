// The pace of several connections together at a simulated bottleneck.
#include "inter/line_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "tests/inter/bottleneck.h"

namespace isthmus::inter {
namespace {

// Connections under BBR that each remember too much: they send faster than the line carries, until
// two windows and a half are on their way, and no faster than the pace.
class Eager final : public Sender {
 public:
  explicit Eager(double round_trip) : route(round_trip), least_(round_trip) {}

  void begin() { pace.begin(time()); }
  double rate(double now) override {
    now_ = now;
    if (now >= next_look_) {
      const bool news = delivered_ > looked_at_;
      looked_at_ = delivered_;
      pace.look({.now = time(),
                 .delivered_bytes = static_cast<std::uint64_t>(delivered_),
                 .round_trip = news ? static_cast<Nanoseconds>(smoothed_ * 1e9) : 0,
                 .round_trip_min = static_cast<Nanoseconds>(least_ * 1e9),
                 .waits = waits(),
                 .full = sends && sent_ < has});
      next_look_ = now + seconds_of(pace.next_look());
    }
    if (!sends || sent_ >= has || sent_ - delivered_ - lost_ >= 2.5 * kFaster * line * route)
      return 0;
    const auto rate =
        std::min(paced ? pace.bytes_per_second().value_or(1e12) : 1e12, kFaster * line);
    sent_ += rate * kStep;
    return rate;
  }
  void acknowledged(double, double bytes, double round_trip) override {
    delivered_ += bytes;
    const double weight = std::min(1.0, bytes / kSegment / 8);
    smoothed_ = smoothed_ == 0 ? round_trip : smoothed_ + (round_trip - smoothed_) * weight;
    least_ = std::min(least_, round_trip);
  }
  void lost(double, double bytes) override { lost_ += bytes; }
  // The other end's word of when something arrived, which itself arrives then.
  void hear_waits(double then, double seconds) { words_.emplace_back(then, seconds); }
  double lost_bytes() const { return lost_; }
  double pace_of_line() const { return pace.bytes_per_second().value_or(0) / line; }

  LinePace pace;
  double line = kLine, route;                            // as BBR knows it, the latter in seconds
  double has = std::numeric_limits<double>::infinity();  // bytes, ever
  bool sends = true, paced = true;

 private:
  std::optional<Nanoseconds> waits() {
    while (words_.size() > 1 && words_[1].first <= now_) words_.pop_front();
    if (words_.empty() || words_[0].first > now_) return std::nullopt;
    return static_cast<Nanoseconds>(words_[0].second * 1e9);
  }
  Nanoseconds time() const { return static_cast<Nanoseconds>(now_ * 1e9) + kSecond; }

  static constexpr double kFaster = 1.76;
  double now_ = 0, next_look_ = 0, delivered_ = 0, looked_at_ = 0, sent_ = 0, lost_ = 0;
  double smoothed_ = 0, least_;
  std::deque<std::pair<double, double>> words_;
};

double share_of_line(Bottleneck& line, Sender& sender, double seconds, double rate = kLine) {
  const double before = sender.delivered;
  line.run_for(seconds);
  return (sender.delivered - before) / (rate * seconds);
}

class LinePaceTest : public testing::TestWithParam<double> {
 protected:
  const double round_trip = GetParam();
  const double target = std::max(round_trip, 0.05);
};
INSTANTIATE_TEST_SUITE_P(RoundTrips, LinePaceTest, testing::Values(0.01, 0.04, 0.1, 0.3));

TEST_P(LinePaceTest, WhatIsSentTooFastIsDrainedAndTheLineStaysFull) {
  Bottleneck line(round_trip, 10);
  Eager eager(round_trip);
  line.add(eager);
  eager.begin();
  line.run_for(20 * target);
  double sum = 0;
  const double before = eager.delivered;
  constexpr int kSeconds = 20;
  for (int i = 0; i < 10 * kSeconds; ++i) {
    line.run_for(0.1);
    sum += line.queue_seconds();
  }
  EXPECT_GE((eager.delivered - before) / (kLine * kSeconds), 0.95);
  EXPECT_LE(sum / (10 * kSeconds), 1.3 * target);
}

// What this is for.
TEST_P(LinePaceTest, ANextSendingLosesNothing) {
  Bottleneck line(round_trip, 1.25 * target);
  Eager eager(round_trip);
  line.add(eager);
  eager.begin();
  line.run_for(20 * target);
  for (int sending = 0; sending < 5; ++sending) {
    eager.sends = false;
    line.run_for(2);
    const double lost = eager.lost_bytes();
    eager.sends = true;
    eager.begin();
    EXPECT_NEAR(eager.pace_of_line(), 1.1, 0.06);
    EXPECT_GE(share_of_line(line, eager, 6 * round_trip), 0.8);
    EXPECT_EQ(eager.lost_bytes() - lost, 0);
  }
}

// At the eager rate all has left before the first round trip that would tell what arrives is over.
TEST_P(LinePaceTest, SendingsOfAFewRoundTripsTeachItToo) {
  Bottleneck line(round_trip, 1.25 * target);
  Eager eager(round_trip);
  line.add(eager);
  eager.has = 0;
  double now = 0;
  for (int sending = 0; sending < 6; ++sending) {
    const double lost = eager.lost_bytes();
    const double bytes = 2.75 * kLine * std::max(round_trip, 0.1);
    eager.has += bytes;
    eager.begin();
    for (int i = 0; i < 40; ++i) {
      line.run_for(0.2 * std::max(round_trip, 0.1));
      eager.hear_waits(now += 0.2 * std::max(round_trip, 0.1), line.queue_seconds());
    }
    if (sending >= 2) {
      EXPECT_LE(eager.lost_bytes() - lost, 0.002 * bytes) << sending;
      EXPECT_GE(eager.pace_of_line(), 0.9) << sending;
      EXPECT_LE(eager.pace_of_line(), 1.2) << sending;
    }
    line.run_for(2);
    now += 2;
  }
}

// Each one's acknowledgements wait for longer and longer behind what the other sends.
TEST(LinePace, ShortSendingsBothWaysTeachItTheWholeLine) {
  for (const double round_trip : {0.1, 0.2, 0.3}) {
    SCOPED_TRACE(round_trip);
    Bottleneck there(round_trip, 2 * round_trip), back(round_trip, 2 * round_trip);
    there.acknowledged_by(back);
    back.acknowledged_by(there);
    Eager one(round_trip), other(round_trip);
    there.add(one);
    back.add(other);
    one.has = other.has = 0;
    double now = 0;
    for (int sending = 0; sending < 6; ++sending) {
      for (auto* each : {&one, &other}) {
        each->has += 2.75 * kLine * round_trip;
        each->begin();
        if (sending < 2) continue;
        EXPECT_GE(each->pace_of_line(), 0.95) << sending;
        EXPECT_LE(each->pace_of_line(), 1.3) << sending;
      }
      const auto end = now + 10 * round_trip;
      for (int i = 0; now < end; now += kStep, ++i) {
        there.run_for(kStep);
        back.run_for(kStep);
        if (i % 20 > 0) continue;
        const auto arrives = now + round_trip + there.queue_seconds() + back.queue_seconds();
        one.hear_waits(arrives, there.queue_seconds());
        other.hear_waits(arrives, back.queue_seconds());
      }
    }
  }
}

TEST_P(LinePaceTest, ASlowerLineIsFollowed) {
  Bottleneck line(round_trip, 10);
  Eager eager(round_trip);
  line.add(eager);
  eager.begin();
  line.run_for(10);
  line.line(kLine / 10);
  eager.line = kLine / 10;
  line.run_for(40 * target);
  EXPECT_GE(share_of_line(line, eager, 10, kLine / 10), 0.9);
  EXPECT_LE(line.queue_seconds(), 1.5 * target);
}

TEST_P(LinePaceTest, AFasterLineIsFound) {
  Bottleneck line(round_trip, 10, kLine / 10);
  Eager eager(round_trip);
  eager.line = kLine / 10;
  line.add(eager);
  eager.begin();
  line.run_for(10);
  line.line(kLine);
  eager.line = kLine;
  line.run_for(40 * target);
  EXPECT_GE(share_of_line(line, eager, 10), 0.9);
}

// It fills no queue, and has no shorter one by sending less.
TEST_P(LinePaceTest, ALongerRouteIsNoQueue) {
  Bottleneck line(round_trip, 10);
  Eager eager(round_trip);
  line.add(eager);
  eager.begin();
  line.run_for(10);
  line.round_trip(eager.route = round_trip + 3 * target);
  line.run_for(40 * target);
  EXPECT_GE(share_of_line(line, eager, 20), 0.85);
}

// Their queue is not one that sending less could drain.
TEST_P(LinePaceTest, WhoFillsQueuesDoesNotDisplaceIt) {
  const auto share = [&](bool paced) {
    Bottleneck line(round_trip, 3 * target);
    Eager eager(round_trip);
    eager.paced = paced;
    Greedy greedy;
    line.add(eager);
    eager.begin();
    line.run_for(5);
    line.add(greedy);
    line.run_for(20);
    return share_of_line(line, eager, 30);
  };
  const double unpaced = share(false);
  EXPECT_GE(share(true), std::min(0.3, 0.6 * unpaced)) << unpaced;
}

// Acknowledgements wait behind what the other end sends.
TEST(LinePace, AQueueElsewhereSlowsNothingDown) {
  for (const bool told : {false, true}) {
    LinePace pace;
    LinePace::Sample sample{.now = kSecond, .round_trip_min = 100 * kMillisecond, .full = true};
    if (told) sample.waits = 5 * kMillisecond;
    pace.begin(sample.now);
    double sent = 0, least = 1e12;
    for (int i = 0; i < 4000; ++i) {
      const auto rate = std::min(pace.bytes_per_second().value_or(1e12), 125'000.0);
      if (i > 100) least = std::min(least, rate);
      sent += rate * seconds_of(pace.next_look());
      sample.now += pace.next_look();
      sample.delivered_bytes = static_cast<std::uint64_t>(sent);
      sample.round_trip = (i / 40 % 2 == 0 ? 300 : 180) * kMillisecond;
      pace.look(sample);
    }
    EXPECT_GE(sent / (125'000 * seconds_of(sample.now - kSecond)), told ? 0.99 : 0.85);
    EXPECT_GE(least, (told ? 0.99 : 0.7) * 125'000);
  }
}

// Both ends send as much as they can. The round trip does not tell whose queue it is; when things
// arrive there does.
TEST_P(LinePaceTest, NeitherOfTwoThatSendToEachOtherKeepsAQueue) {
  for (const bool told : {false, true})
    for (const double rate : {kLine, kLine / 100}) {
      Bottleneck there(round_trip, 0.5, rate), back(round_trip, 0.5, rate);
      there.acknowledged_by(back);
      back.acknowledged_by(there);
      Eager one(round_trip), other(round_trip);
      one.line = other.line = rate;
      there.add(one);
      back.add(other);
      one.begin();
      other.begin();
      double waits = 0, now = 0, next_word = 0;
      const auto run = [&](double seconds) {
        for (const auto end = now + seconds; now < end; now += kStep) {
          there.run_for(kStep);
          back.run_for(kStep);
          waits += (there.queue_seconds() + back.queue_seconds()) * kStep;
          if (!told || now < next_word) continue;
          next_word = now + 0.2;
          const auto arrives = now + round_trip + there.queue_seconds() + back.queue_seconds();
          one.hear_waits(arrives, there.queue_seconds());
          other.hear_waits(arrives, back.queue_seconds());
        }
      };
      run(20 * target);
      waits = 0;
      const double before = one.delivered, others = other.delivered;
      constexpr double kSeconds = 60;
      run(kSeconds);
      SCOPED_TRACE(testing::Message() << (told ? "told, " : "not told, ") << rate);
      EXPECT_GE((one.delivered - before) / (rate * kSeconds), 0.9);
      EXPECT_GE((other.delivered - others) / (rate * kSeconds), 0.9);
      EXPECT_LE(waits / kSeconds, 1.5 * target);
    }
}

TEST(LinePace, WhatIsNearNeedsNone) {
  Bottleneck line(0.001, 1);
  Eager eager(0.001);
  line.add(eager);
  eager.begin();
  line.run_for(2);
  EXPECT_EQ(eager.pace.bytes_per_second(), std::nullopt);
}

// They were sent before there was a queue: what arrived tells of the moment, not of the line.
TEST(LinePace, WhatIsSmallIsNotPaced) {
  LinePace pace;
  LinePace::Sample sample{.now = kSecond,
                          .round_trip = 100 * kMillisecond,
                          .round_trip_min = 100 * kMillisecond,
                          .full = true};
  for (int sending = 0; sending < 10; ++sending) {
    pace.begin(sample.now);
    EXPECT_EQ(pace.bytes_per_second(), std::nullopt);
    for (int i = 0; i < 20; ++i) {
      sample.now += pace.next_look();
      sample.delivered_bytes += 13'000;
      pace.look(sample);
      EXPECT_EQ(pace.bytes_per_second(), std::nullopt);
    }
    sample.now += 10 * kSecond;
  }
}

// What arrives says what the line carries only as far as it was sent; where it is not known how
// fast that was, it may have been any.
TEST(LinePace, WhatBeginsLateIsPacedByWhatArrives) {
  constexpr double kCarries = 2.5e6;
  for (int first = 100; first <= 1000; first += 50)
    for (int full_after = 0; full_after <= 400; full_after += 25)
      for (const int queue : {26, 30, 60, 150}) {
        SCOPED_TRACE(testing::Message() << first << " " << full_after << " " << queue);
        LinePace pace;
        LinePace::Sample sample{.now = kSecond, .round_trip_min = 100 * kMillisecond};
        sample.full = true;
        pace.begin(sample.now);
        double least = 1e12, delivered = 0;
        for (Nanoseconds since = 0; since < 2 * kSecond;) {
          const auto step = pace.next_look();
          since += step;
          sample.now += step;
          if (since < first * kMillisecond) continue;
          delivered += kCarries * seconds_of(step);
          sample.delivered_bytes = static_cast<std::uint64_t>(delivered);
          const bool full = since >= (first + full_after) * kMillisecond;
          sample.round_trip = (100 + (full ? queue : 0)) * kMillisecond;
          pace.look(sample);
          least = std::min(least, pace.bytes_per_second().value_or(1e12));
        }
        EXPECT_GE(least, 0.6 * kCarries);
      }
}

// The least pace while there is always more to send, and a queue, on a line that carries so much:
// at each moment that share of it, or nothing.
double least_pace(Nanoseconds round_trip_min, double carries, Nanoseconds time,
                  const std::function<double(Nanoseconds since)>& share) {
  LinePace pace;
  LinePace::Sample sample{.now = kSecond, .round_trip_min = round_trip_min, .full = true};
  pace.begin(sample.now);
  double least = std::numeric_limits<double>::infinity(), delivered = 0;
  for (Nanoseconds since = 0; since < time;) {
    const auto step = pace.next_look();
    since += step;
    sample.now += step;
    delivered += seconds_of(step) * share(since) *
                 std::min(pace.bytes_per_second().value_or(carries), carries);
    sample.delivered_bytes = static_cast<std::uint64_t>(delivered);
    // What is not ours is in the round trip, too.
    sample.round_trip = share(since) > 0 ? round_trip_min + 30 * kMillisecond : 0;
    pace.look(sample);
    if (since > 2 * kSecond) least = std::min(least, pace.bytes_per_second().value_or(least));
  }
  return least;
}

// BBR sends next to nothing for a fifth of a second, now and then, to see the shortest round trip.
TEST(LinePace, AMomentOfSilenceSlowsNothingDown) {
  constexpr double kCarries = 10e6;
  EXPECT_GE(least_pace(100 * kMillisecond, kCarries, 100 * kSecond,
                       [](Nanoseconds since) {
                         return since % (10 * kSecond) > 9700 * kMillisecond ? 0 : 1;
                       }),
            0.7 * kCarries);
}

// The line is cut for a few seconds; then TCP mends what was lost, with next to nothing at first.
TEST(LinePace, WhatAnOutageLeavesToMendIsNotWhatTheLineCarries) {
  constexpr double kCarries = 250e3;
  const auto share = [](Nanoseconds since) {
    if (since < 10 * kSecond || since >= 14700 * kMillisecond) return 1.0;
    return since < 14 * kSecond ? 0 : 0.02;
  };
  EXPECT_GE(least_pace(80 * kMillisecond, kCarries, 30 * kSecond, share), 0.7 * kCarries);
}

}  // namespace
}  // namespace isthmus::inter

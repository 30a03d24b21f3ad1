// The polite pace at a simulated bottleneck.
#include "inter/polite_rate.h"

#include <gtest/gtest.h>

#include "tests/inter/bottleneck.h"

namespace isthmus::inter {
namespace {

class Polite final : public Sender {
 public:
  double rate(double now) override {
    if (now >= next_look_ && sample_.round_trip > 0) {
      sample_.now = static_cast<Nanoseconds>(now * 1e9) + 1;
      polite.look(sample_);
      next_look_ = now + seconds_of(polite.next_look());
    }
    const double rate = sample_.now == 0 ? 10 * kSegment / kStep / 100 : polite.bytes_per_second();
    sent_ += rate * kStep;
    sample_.segments_sent = static_cast<std::uint64_t>(sent_ / kSegment);
    return rate;
  }
  void acknowledged(double, double bytes, double round_trip) override {
    acknowledged_ += bytes;
    sample_.acknowledged_bytes = static_cast<std::uint64_t>(acknowledged_);
    // As TCP does it, which weighs each segment.
    const double weight = std::min(1.0, bytes / kSegment / 8);
    smoothed_ = smoothed_ == 0 ? round_trip : smoothed_ + (round_trip - smoothed_) * weight;
    least_ = least_ == 0 ? round_trip : std::min(least_, round_trip);
    sample_.round_trip = static_cast<Nanoseconds>(smoothed_ * 1e9);
    sample_.round_trip_min = static_cast<Nanoseconds>(least_ * 1e9);
    sample_.segment_bytes = static_cast<std::uint32_t>(kSegment);
  }
  void lost(double, double bytes) override {
    lost_ += bytes;
    sample_.segments_resent = static_cast<std::uint64_t>(lost_ / kSegment);
  }

  PoliteRate polite;

 private:
  PoliteRate::Sample sample_;
  double next_look_ = 0, acknowledged_ = 0, lost_ = 0, smoothed_ = 0, least_ = 0, sent_ = 0;
};

double share_of(Bottleneck& line, Sender& sender, double seconds) {
  const double before = sender.delivered;
  line.run_for(seconds);
  return (sender.delivered - before) / (kLine * seconds);
}

class PoliteRateTest : public testing::TestWithParam<double> {};
INSTANTIATE_TEST_SUITE_P(RoundTrips, PoliteRateTest, testing::Values(0.01, 0.04, 0.1, 0.2));

TEST_P(PoliteRateTest, AloneItFillsTheLineAndKeepsTheQueueShort) {
  Bottleneck line(GetParam(), 0.2);
  Polite polite;
  line.add(polite);
  line.run_for(30 * GetParam());
  double longest = 0, sum = 0;
  const double before = polite.delivered;
  constexpr int kSeconds = 40;
  for (int i = 0; i < 10 * kSeconds; ++i) {
    line.run_for(0.1);
    longest = std::max(longest, line.queue_seconds());
    sum += line.queue_seconds();
  }
  EXPECT_GE((polite.delivered - before) / (kLine * kSeconds), 0.85);
  EXPECT_LE(longest, 2 * seconds_of(polite.polite.target()));
  EXPECT_LE(sum / (10 * kSeconds), seconds_of(polite.polite.target()));
}

TEST_P(PoliteRateTest, WhoFillsQueuesKeepsMostOfWhatItHasAlone) {
  Bottleneck alone(GetParam(), 0.1);
  Greedy undisturbed;
  alone.add(undisturbed);
  alone.run_for(10);
  const double had = share_of(alone, undisturbed, 30);

  Bottleneck line(GetParam(), 0.1);
  Polite polite;
  Greedy greedy;
  line.add(polite);
  line.run_for(10);
  line.add(greedy);
  line.run_for(15);
  EXPECT_GE(share_of(line, greedy, 30), 0.8 * had);
  EXPECT_GT(had, 0.7);
}

TEST_P(PoliteRateTest, ItTakesWhatASteadyStreamLeaves) {
  Bottleneck line(GetParam(), 0.1);
  Polite polite;
  Steady steady(0.8);
  line.add(polite);
  line.run_for(10);
  line.add(steady);
  line.run_for(5);
  const double kept = steady.delivered;
  const double share = share_of(line, polite, 20);
  EXPECT_LE(share, 0.2);
  EXPECT_GE(share, 0.12);
  EXPECT_GE((steady.delivered - kept) / (kLine * 20), 0.79);
}

TEST_P(PoliteRateTest, ItComesBackWhenTheLineIsFree) {
  Bottleneck line(GetParam(), 0.1);
  Polite polite;
  Greedy greedy;
  line.add(polite);
  line.run_for(5);
  line.add(greedy);
  line.run_for(20);
  EXPECT_LE(share_of(line, polite, 10), 0.2);
  line.remove(greedy);
  line.run_for(80 * GetParam());
  EXPECT_GE(share_of(line, polite, 10), 0.85);
}

TEST(PoliteRate, FewLossesAreTheLinesOwnAndManyAreAFullQueue) {
  const auto rate_after = [](std::uint64_t resent_of_1000) {
    PoliteRate polite;
    PoliteRate::Sample sample{.now = kSecond,
                              .round_trip = 40 * kMillisecond,
                              .round_trip_min = 40 * kMillisecond,
                              .segment_bytes = 1448};
    for (int i = 0; i < 20; ++i) {
      polite.look(sample);
      sample.now += 40 * kMillisecond;
      sample.acknowledged_bytes += static_cast<std::uint64_t>(0.04 * polite.bytes_per_second());
      sample.segments_sent += 1000;
      sample.segments_resent += i < 12 ? 0 : resent_of_1000;
    }
    return polite.bytes_per_second();
  };
  EXPECT_EQ(rate_after(10), rate_after(0));
  EXPECT_LT(rate_after(50), rate_after(0) / 10);
}

// A route that got longer is no queue for ever: what was the least is forgotten after ten minutes.
TEST(PoliteRate, TheLeastRoundTripIsOfTheLastTenMinutes) {
  PoliteRate polite;
  PoliteRate::Sample sample{.now = kSecond, .round_trip = 20 * kMillisecond, .segment_bytes = 1448};
  const auto run = [&](Nanoseconds time) {
    for (const auto end = sample.now + time; sample.now < end; sample.now += kSecond / 10) {
      sample.acknowledged_bytes += 100'000;
      sample.segments_sent += 100;
      polite.look(sample);
    }
  };
  run(60 * kSecond);
  EXPECT_EQ(polite.queueing_delay(), 0);
  sample.round_trip = 90 * kMillisecond;
  run(8 * 60 * kSecond);
  EXPECT_GE(polite.queueing_delay(), 30 * kMillisecond);
  run(3 * 60 * kSecond);
  EXPECT_EQ(polite.queueing_delay(), 0);
  EXPECT_EQ(polite.target(), 22'500 * kMicrosecond);
}

}  // namespace
}  // namespace isthmus::inter

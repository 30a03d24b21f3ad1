#include "tests/wan/path.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace isthmus::wan {
namespace {

constexpr std::size_t kPacket = 1500;
constexpr double kMbit = 1e6;

Path path_with(const PathSettings& settings) { return Path(settings, Random(7)); }

TEST(Path, PacketsLeaveAtTheRate) {
  auto path = path_with({.bits_per_second = 100 * kMbit, .queue_bytes = 1e9});
  Nanoseconds last = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto left = path.enqueue(0, kPacket);
    ASSERT_TRUE(left);
    EXPECT_EQ(*left - last, 120 * kMicrosecond);  // 12,000 bits
    last = *left;
  }
  // An idle line saves up nothing.
  EXPECT_EQ(path.enqueue(kSecond, kPacket), kSecond + 120 * kMicrosecond);
  EXPECT_EQ(path.enqueue(kSecond, kPacket), kSecond + 240 * kMicrosecond);
}

TEST(Path, WithoutARateNothingWaits) {
  auto path = path_with({.queue_bytes = 1});
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(path.enqueue(5, kPacket), 5);
  EXPECT_EQ(path.counts.overflow, 0u);
}

TEST(Path, AFullQueueTakesNothingUntilItHasDrained) {
  auto path = path_with({.bits_per_second = 100 * kMbit, .queue_bytes = 10 * kPacket});
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(path.enqueue(0, kPacket)) << i;
  EXPECT_FALSE(path.enqueue(0, kPacket));
  EXPECT_FALSE(path.enqueue(120 * kMicrosecond - 1, kPacket));
  EXPECT_FALSE(path.enqueue(0, 2 * kPacket, 2));
  EXPECT_EQ(path.counts.overflow, 4u);
  EXPECT_EQ(path.enqueue(120 * kMicrosecond, kPacket), 11 * 120 * kMicrosecond);
  EXPECT_FALSE(path.enqueue(120 * kMicrosecond, kPacket));
}

std::size_t packets_that_fit(Path path) {
  std::size_t packets = 0;
  while (path.enqueue(0, kPacket)) ++packets;
  return packets;
}

TEST(Path, AQueueOfNoSetSizeHoldsATenthOfASecond) {
  EXPECT_EQ(packets_that_fit(path_with({.bits_per_second = 120 * kMbit})), 1000u);
  EXPECT_EQ(packets_that_fit(path_with({.bits_per_second = kMbit})), 65536 / kPacket);
}

TEST(Path, AChangeOfRateKeepsTheBytesInTheQueue) {
  auto path = path_with({.bits_per_second = 10 * kMbit, .queue_bytes = 1e6});
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(path.enqueue(0, kPacket));  // 1.2 ms each
  path.change({.bits_per_second = 100 * kMbit, .queue_bytes = 1e6}, 60 * kMillisecond);
  // Fifty are left, of 0.12 ms each now, and one more.
  EXPECT_EQ(path.enqueue(60 * kMillisecond, kPacket), 66 * kMillisecond + 120 * kMicrosecond);
}

// What the queue holds is under way already: behind it the new rate begins.
TEST(Path, AtALowerRateTheLineIsNotDeadMeanwhile) {
  auto path = path_with({.bits_per_second = 100 * kMbit, .queue_bytes = 1e6});
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(path.enqueue(0, kPacket));  // 0.12 ms each
  path.change({.bits_per_second = 1 * kMbit, .queue_bytes = 1e6}, 6 * kMillisecond);
  EXPECT_EQ(path.enqueue(6 * kMillisecond, kPacket), 12 * kMillisecond + 12 * kMillisecond);
}

// Whether each of `count` packets is lost.
std::vector<bool> fates(const PathSettings& settings, std::size_t count) {
  auto path = path_with(settings);
  std::vector<bool> lost;
  for (std::size_t i = 0; i < count; ++i) lost.push_back(path.loses());
  EXPECT_EQ(path.counts.lost,
            static_cast<std::uint64_t>(std::count(lost.begin(), lost.end(), true)));
  return lost;
}

struct Losses {
  double share;
  double run_length;  // mean
};
Losses measure(const std::vector<bool>& lost) {
  double losses = 0, runs = 0;
  for (std::size_t i = 0; i < lost.size(); ++i) {
    losses += lost[i];
    runs += lost[i] && (i == 0 || !lost[i - 1]);
  }
  return {losses / static_cast<double>(lost.size()), losses / runs};
}

constexpr std::size_t kPackets = 400'000;
constexpr double kDeviations = 4;

// Of the share among kPackets whose fates are correlated from one to the next.
double deviation(double loss, double correlation) {
  return std::sqrt(loss * (1 - loss) / kPackets * (1 + correlation) / (1 - correlation));
}

TEST(Path, IndependentLossesHaveTheirShare) {
  for (const double loss : {0.001, 0.01, 0.3}) {
    const auto losses = measure(fates({.loss = loss}, kPackets));
    EXPECT_NEAR(losses.share, loss, kDeviations * deviation(loss, 0));
    EXPECT_NEAR(losses.run_length, 1 / (1 - loss), 0.05);
  }
}

TEST(Path, LossesInRunsHaveTheirShareAndLength) {
  for (const double burst : {3.0, 20.0}) {
    const double loss = 0.02;
    const auto losses = measure(fates({.loss = loss, .burst = burst}, kPackets));
    const double correlation = 1 - 1 / burst - loss / burst / (1 - loss);
    EXPECT_NEAR(losses.share, loss, kDeviations * deviation(loss, correlation)) << burst;
    EXPECT_NEAR(losses.run_length, burst, 0.2 * burst);
  }
}

TEST(Path, NothingOrEverythingIsLost) {
  EXPECT_EQ(measure(fates({.loss = 1}, 1000)).share, 1);
  EXPECT_EQ(measure(fates({.loss = 1, .burst = 5}, 1000)).share, 1);
  EXPECT_EQ(measure(fates({}, 1000)).share, 0);
}

std::vector<Nanoseconds> arrivals(const PathSettings& settings) {
  auto path = path_with(settings);
  std::vector<Nanoseconds> times;
  for (int i = 0; i < 1000; ++i) times.push_back(path.arrival(i * 100 * kMicrosecond));
  return times;
}

TEST(Path, ArrivalIsTheDelayLater) {
  const auto times = arrivals({.delay = 50 * kMillisecond});
  for (std::size_t i = 0; i < times.size(); ++i)
    EXPECT_EQ(times[i], 50 * kMillisecond + static_cast<Nanoseconds>(i) * 100 * kMicrosecond);
}

TEST(Path, JitterKeepsTheOrder) {
  const auto times = arrivals({.delay = 50 * kMillisecond, .jitter = 5 * kMillisecond});
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  for (std::size_t i = 0; i < times.size(); ++i) {
    const auto sent = static_cast<Nanoseconds>(i) * 100 * kMicrosecond;
    EXPECT_GE(times[i], sent + 50 * kMillisecond);
    EXPECT_LT(times[i], sent + 55 * kMillisecond);
  }
}

TEST(Path, JitterWithReorderingLetsPacketsOvertake) {
  const auto times =
      arrivals({.delay = 50 * kMillisecond, .jitter = 5 * kMillisecond, .reorder = true});
  std::size_t overtaken = 0;
  double jitter = 0;
  for (std::size_t i = 0; i < times.size(); ++i) {
    const auto sent = static_cast<Nanoseconds>(i) * 100 * kMicrosecond;
    EXPECT_GE(times[i], sent + 50 * kMillisecond);
    EXPECT_LT(times[i], sent + 55 * kMillisecond);
    jitter += static_cast<double>(times[i] - sent - 50 * kMillisecond);
    overtaken += i > 0 && times[i] < times[i - 1];
  }
  EXPECT_GT(overtaken, 400u);  // neighbours are much closer to each other than the jitter
  EXPECT_NEAR(jitter / 1000, 2.5 * kMillisecond, 0.2 * kMillisecond);
}

TEST(Path, SharesOfDuplicatesAndDamage) {
  auto path = path_with({.duplicate = 0.1, .corrupt = 0.4});
  std::size_t duplicates = 0, corrupted = 0;
  for (std::size_t i = 0; i < kPackets; ++i) {
    duplicates += path.duplicates();
    corrupted += path.corrupts();
  }
  EXPECT_NEAR(static_cast<double>(duplicates) / kPackets, 0.1, kDeviations * deviation(0.1, 0));
  EXPECT_NEAR(static_cast<double>(corrupted) / kPackets, 0.4, kDeviations * deviation(0.4, 0));
}

}  // namespace
}  // namespace isthmus::wan

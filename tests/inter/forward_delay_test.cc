#include "inter/forward_delay.h"

#include <gtest/gtest.h>

namespace isthmus::inter {
namespace {

constexpr Nanoseconds kOffset = 4321 * kSecond;  // the peer's clock began earlier

class ForwardDelayTest : public testing::Test {
 protected:
  std::optional<Nanoseconds> arrives(Nanoseconds now, Nanoseconds way, double drift = 0) {
    delay.add(now, now - way,
              now + kOffset + static_cast<Nanoseconds>(drift * static_cast<double>(now)), 2 * way);
    const auto waits = delay.waits(now);
    return waits ? std::optional(waits->there) : std::nullopt;
  }
  ForwardDelay delay;
};

TEST_F(ForwardDelayTest, IsWhatTheWayTakesLongerThanTheShortest) {
  EXPECT_FALSE(delay.waits(0));
  EXPECT_EQ(arrives(10 * kSecond, 50 * kMillisecond), 0);
  EXPECT_EQ(arrives(12 * kSecond, 170 * kMillisecond), 120 * kMillisecond);
  EXPECT_EQ(delay.waits(12 * kSecond)->both_ways, 240 * kMillisecond);
  EXPECT_FALSE(delay.waits(14 * kSecond)) << "of long ago";
  EXPECT_EQ(arrives(20 * kSecond, 40 * kMillisecond), 0);
  EXPECT_EQ(arrives(22 * kSecond, 170 * kMillisecond), 130 * kMillisecond);
}

TEST_F(ForwardDelayTest, WhatWasLostOnceIsNoQueue) {
  EXPECT_EQ(arrives(10 * kSecond, 50 * kMillisecond), 0);
  EXPECT_EQ(arrives(10 * kSecond + 200 * kMillisecond, 60 * kMillisecond), 0);
  EXPECT_EQ(arrives(10 * kSecond + 400 * kMillisecond, 250 * kMillisecond), 10 * kMillisecond);
  EXPECT_EQ(arrives(10 * kSecond + 500 * kMillisecond, 60 * kMillisecond), 10 * kMillisecond);
}

TEST_F(ForwardDelayTest, ALongerRouteIsNoQueueAfterMinutes) {
  arrives(10 * kSecond, 50 * kMillisecond);
  std::optional<Nanoseconds> waits;
  for (int second = 11; second < 400; ++second)
    waits = arrives(second * kSecond, 90 * kMillisecond);
  EXPECT_EQ(waits, 0);
}

TEST_F(ForwardDelayTest, ClocksThatDriftMakeAShortQueue) {
  for (const double drift : {1e-4, -1e-4}) {
    delay.new_session();
    for (int second = 10; second < 3600; ++second)
      EXPECT_LE(*arrives(second * kSecond, 50 * kMillisecond, drift), 35 * kMillisecond);
  }
}

// What a peer says of its clock can be anything.
TEST_F(ForwardDelayTest, BelievesNoNonsense) {
  for (const auto clock : {INT64_MIN, Nanoseconds{-1}, INT64_MAX, INT64_MAX / 2})
    delay.add(kSecond, kSecond, clock, kSecond);
  EXPECT_FALSE(delay.waits(kSecond));
  delay.add(kSecond, kSecond, 0, kSecond);
  delay.add(2 * kSecond, kSecond, INT64_MAX / 4, kSecond);
  EXPECT_EQ(delay.waits(2 * kSecond)->there, INT64_MAX / 4);
}

}  // namespace
}  // namespace isthmus::inter

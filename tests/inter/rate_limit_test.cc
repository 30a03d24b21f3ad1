#include "inter/rate_limit.h"

#include <gtest/gtest.h>

namespace isthmus::inter {
namespace {

constexpr double kLimitedTo = 1000;

TEST(RateLimit, PlacesFollowOneAnother) {
  RateLimit limit(kLimitedTo);
  EXPECT_EQ(limit.reserve(kSecond, 500), kSecond);
  EXPECT_EQ(limit.reserve(kSecond, 500), kSecond + kSecond / 2);
  EXPECT_EQ(limit.reserve(5 * kSecond, 500), 5 * kSecond);
}

TEST(RateLimit, APieceLeavesAtTheEndOfItsPlace) {
  RateLimit limit(kLimitedTo);
  for (int i = 1; i <= 3; ++i) {
    const auto piece = limit.reserve_piece(0, 1000);
    EXPECT_EQ(piece.leaves, i * kSecond);
    EXPECT_EQ(piece.bytes, 1000U);
  }
  EXPECT_EQ(RateLimit(1e6).reserve_piece(0, 1 << 20).bytes, 16384U) << "a record";
  EXPECT_EQ(RateLimit(40'000).reserve_piece(0, 1 << 20).bytes, 10'000U) << "a quarter of a second";
  EXPECT_EQ(RateLimit(kLimitedTo).reserve_piece(0, 1 << 20).bytes, 1400U) << "a packet";
}

TEST(RateLimit, WhatControlTakesIsWaitedForButNoLongerThanHalfAMinute) {
  RateLimit limit(kLimitedTo);
  limit.pay(0, 2000);
  EXPECT_EQ(limit.reserve(0, 1000), 2 * kSecond);
  for (int i = 0; i < 100; ++i) limit.pay(0, 2000);
  EXPECT_EQ(limit.reserve(0, 1000), 30 * kSecond);
  limit.pay(0, 2000);
  EXPECT_EQ(limit.reserve(0, 1000), 31 * kSecond) << "what has a place keeps it";
}

TEST(RateLimit, ForWhatDoesNotLeaveOthersDo) {
  RateLimit limit(kLimitedTo);
  limit.reserve(0, 1000);
  limit.give_back(1000);
  EXPECT_TRUE(limit.idle(0));
  limit.reserve(0, 1000);
  limit.give_back(1000, 400);
  EXPECT_EQ(limit.reserve(0, 1), 400 * kMillisecond);
}

TEST(RateLimit, AnotherRateHoldsAtOnce) {
  RateLimit limit(kLimitedTo);
  limit.pay(0, 20'000);
  limit.set_rate(kSecond, 2 * kLimitedTo);
  EXPECT_EQ(limit.reserve(kSecond, 1000), kSecond);
  EXPECT_EQ(limit.reserve(kSecond, 1000), kSecond + kSecond / 2);
  limit.set_rate(kSecond, 0);
  EXPECT_EQ(limit.reserve_piece(kSecond, 1 << 20).leaves, kSecond);
  EXPECT_EQ(limit.reserve_piece(kSecond, 1 << 20).bytes, std::size_t{1} << 20);
}

}  // namespace
}  // namespace isthmus::inter

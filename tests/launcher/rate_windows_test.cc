#include "launcher/rate_windows.h"

#include <gtest/gtest.h>
#include <time.h>

#include <cstdlib>
#include <string>

namespace isthmus::launcher {
namespace {

constexpr std::int64_t kDay = 10'000'000, kNight = 0, kOtherwise = 50'000'000;
const std::vector<RateWindow> kWindows = {{8 * 60, 18 * 60, kDay}, {22 * 60, 6 * 60, kNight}};

// The process' zone, while this lives; rules as POSIX writes them need no zone database.
class Zone {
 public:
  explicit Zone(const char* rules) {
    if (const char* before = std::getenv("TZ")) before_ = before;
    ::setenv("TZ", rules, 1);
  }
  ~Zone() {
    if (before_)
      ::setenv("TZ", before_->c_str(), 1);
    else
      ::unsetenv("TZ");
    ::tzset();
  }

 private:
  std::optional<std::string> before_;
};

// Of 2026, UTC.
Nanoseconds utc(int month, int day, int hour, int minute) {
  tm at{};
  at.tm_year = 126;
  at.tm_mon = month - 1;
  at.tm_mday = day;
  at.tm_hour = hour;
  at.tm_min = minute;
  return ::timegm(&at) * kSecond;
}

TEST(RateWindows, TimesOfTheDayAreReadAsTheyAreWritten) {
  EXPECT_EQ(parse_time_of_day("00:00"), 0);
  EXPECT_EQ(parse_time_of_day("08:05"), 485);
  EXPECT_EQ(parse_time_of_day("24:00"), kMinutesPerDay);
  EXPECT_EQ(time_of_day(485), "08:05");
  for (const auto wrong : {"", "8:00", "08:60", "24:01", "25:00", "08.00", "08:0", "-8:00",
                           "08:00 ", "0a:00", "08:000"})
    EXPECT_FALSE(parse_time_of_day(wrong)) << wrong;
}

TEST(RateWindows, TheyCoverTheDayWhenNoMinuteIsLeft) {
  EXPECT_FALSE(cover_the_day({}));
  EXPECT_FALSE(cover_the_day(kWindows));
  EXPECT_TRUE(cover_the_day(std::vector<RateWindow>{{0, kMinutesPerDay, 1}}));
  EXPECT_TRUE(cover_the_day(std::vector<RateWindow>{{8 * 60, 18 * 60, 1}, {18 * 60, 8 * 60, 0}}));
  EXPECT_FALSE(
      cover_the_day(std::vector<RateWindow>{{8 * 60, 18 * 60, 1}, {18 * 60 + 1, 8 * 60, 0}}));
}

TEST(RateWindows, OverlapsAreFoundAcrossMidnight) {
  EXPECT_FALSE(overlapping(kWindows));
  const auto with = [](int from, int to) {
    auto windows = kWindows;
    windows.push_back({from, to, 1});
    return overlapping(windows);
  };
  EXPECT_FALSE(with(6 * 60, 8 * 60));
  EXPECT_FALSE(with(18 * 60, 22 * 60));
  EXPECT_EQ(with(6 * 60 - 1, 7 * 60), std::pair(1UL, 2UL));
  EXPECT_EQ(with(17 * 60, 19 * 60), std::pair(0UL, 2UL));
  EXPECT_EQ(with(23 * 60, 24 * 60), std::pair(1UL, 2UL));
  EXPECT_EQ(with(0, kMinutesPerDay), std::pair(1UL, 2UL));
}

TEST(RateWindows, WhatHoldsAndUntilWhen) {
  const auto said = [](int hour, int minute) {
    return rate_sentence(rate_at(kWindows, kOtherwise, 60 * hour + minute));
  };
  EXPECT_EQ(said(7, 59), "50 Mbit/s until 08:00, then 10 Mbit/s");
  EXPECT_EQ(said(8, 0), "10 Mbit/s until 18:00, then 50 Mbit/s");
  EXPECT_EQ(said(17, 59), "10 Mbit/s until 18:00, then 50 Mbit/s");
  EXPECT_EQ(said(18, 0), "50 Mbit/s until 22:00, then unlimited");
  EXPECT_EQ(said(23, 30), "unlimited until 06:00 tomorrow, then 50 Mbit/s");
  EXPECT_EQ(said(0, 0), "unlimited until 06:00, then 50 Mbit/s");
  EXPECT_EQ(said(5, 59), "unlimited until 06:00, then 50 Mbit/s");
  EXPECT_EQ(said(6, 0), "50 Mbit/s until 08:00, then 10 Mbit/s");
  const std::vector<RateWindow> whole_day = {{0, kMinutesPerDay, kDay}};
  for (int minute = 0; minute < kMinutesPerDay; ++minute)
    EXPECT_EQ(rate_at(whole_day, kOtherwise, minute).rate_limit, kDay);
}

// Central Europe: from 02:00 to 03:00 on the last Sunday of March, back from 03:00 to 02:00 on that
// of October.
TEST(RateWindows, SummerTimeMovesTheWindowWithTheWallClock) {
  const Zone zone("CET-1CEST,M3.5.0/2,M10.5.0/3");
  EXPECT_EQ(minute_of_day(utc(1, 15, 7, 0)), 8 * 60);
  EXPECT_EQ(minute_of_day(utc(7, 15, 6, 0)), 8 * 60);
  const std::vector<RateWindow> early = {{2 * 60 + 30, 3 * 60 + 30, kDay}};
  const auto rate = [&](Nanoseconds at) {
    return rate_at(early, kOtherwise, minute_of_day(at)).rate_limit;
  };
  // The day without 02:00 to 03:00: the window begins in the hour that is left out.
  EXPECT_EQ(rate(utc(3, 29, 0, 59)), kOtherwise);  // 01:59
  EXPECT_EQ(rate(utc(3, 29, 1, 0)), kDay);         // 03:00
  EXPECT_EQ(rate(utc(3, 29, 1, 29)), kDay);
  EXPECT_EQ(rate(utc(3, 29, 1, 30)), kOtherwise);
  // The day that has 02:00 to 03:00 twice: the half hour from 02:30 holds twice.
  EXPECT_EQ(rate(utc(10, 25, 0, 30)), kDay);       // 02:30, for the first time
  EXPECT_EQ(rate(utc(10, 25, 1, 0)), kOtherwise);  // 02:00 again
  EXPECT_EQ(rate(utc(10, 25, 1, 30)), kDay);
  EXPECT_EQ(rate(utc(10, 25, 2, 30)), kOtherwise);  // 03:30
}

TEST(RateWindows, AClockThatJumpsGivesWhatItSays) {
  const Zone zone("UTC0");
  EXPECT_EQ(minute_of_day(utc(5, 1, 12, 34)), 12 * 60 + 34);
  EXPECT_EQ(minute_of_day(0), 0);
  EXPECT_EQ(minute_of_day(-60 * kSecond), kMinutesPerDay - 1);
  EXPECT_EQ(minute_of_day(-1), kMinutesPerDay - 1);
}

TEST(RateWindows, AZoneIsOneThatTheSystemKnows) {
  EXPECT_TRUE(is_time_zone("UTC"));
  for (const auto wrong : {"", "Nowhere/AtAll", "../../../etc/passwd", "/etc/localtime", ":UTC"})
    EXPECT_FALSE(is_time_zone(wrong)) << wrong;
  const Zone before("CET-1");
  use_time_zone("UTC");
  EXPECT_EQ(minute_of_day(utc(5, 1, 12, 34)), 12 * 60 + 34);
}

}  // namespace
}  // namespace isthmus::launcher

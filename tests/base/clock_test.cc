#include "base/clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <thread>

namespace isthmus {
namespace {

TEST(Clock, NeverGoesBackAndCountsNanoseconds) {
  const auto clock = make_system_clock();
  const auto start = clock->now();
  for (auto last = start; last < start + kMillisecond;) {
    const auto now = clock->now();
    ASSERT_GE(now, last);
    last = now;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_GE(clock->now() - start, 21 * kMillisecond);
}

TEST(Clock, UnixTimeIsTheCalendar) {
  const auto before = std::time(nullptr);
  const auto now = make_system_clock()->unix_time();
  EXPECT_GE(now / kSecond, before);
  EXPECT_LE(now / kSecond, std::time(nullptr) + 1);
  EXPECT_DOUBLE_EQ(seconds_of(1'500 * kMillisecond), 1.5);
}

}  // namespace
}  // namespace isthmus

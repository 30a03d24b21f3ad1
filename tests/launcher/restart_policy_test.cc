#include "launcher/restart_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isthmus::launcher {
namespace {

using What = RestartDecision::What;

constexpr ProcessEnd kKilled{.code = 0, .signal = 9};
constexpr ProcessEnd kBroken{.code = 5, .signal = 0};

TEST(RestartPolicy, WhatExitCodesMean) {
  RestartPolicy policy({});
  EXPECT_EQ(policy.on_end({.code = 0, .signal = 0}, kSecond, 0).what, What::finished);
  EXPECT_EQ(policy.on_end({.code = 3, .signal = 0}, kSecond, 0).what, What::stopped);
  for (const int hopeless : {2, 6})
    EXPECT_EQ(policy.on_end({.code = hopeless, .signal = 0}, 100 * kSecond, 9).what, What::give_up);
  for (const auto& end : {kKilled, kBroken, ProcessEnd{.code = 1, .signal = 0},
                          ProcessEnd{.code = 4, .signal = 0}, ProcessEnd{.code = 2, .signal = 9}})
    EXPECT_EQ(policy.on_end(end, 20 * kSecond, 0).what, What::restart) << end.text();
}

TEST(RestartPolicy, DelaysDoubleAndAreForgotten) {
  RestartPolicy policy({});
  std::int64_t progress = 0;
  EXPECT_EQ(policy.on_end(kKilled, 20 * kSecond, ++progress).delay, kSecond / 2);
  EXPECT_EQ(policy.on_end(kKilled, 20 * kSecond, ++progress).delay, kSecond);
  EXPECT_EQ(policy.on_end(kBroken, 20 * kSecond, ++progress).delay, 2 * kSecond);
  for (int i = 0; i < 100; ++i)
    EXPECT_LE(policy.on_end(kKilled, 20 * kSecond, ++progress).delay, 30 * kSecond);
  EXPECT_EQ(policy.on_end(kKilled, 20 * kSecond, ++progress).delay, 30 * kSecond);
  EXPECT_EQ(policy.on_end(kKilled, 60 * kSecond, ++progress).delay, kSecond / 2);
}

TEST(RestartPolicy, GivesUpAfterInstantFailuresInARow) {
  RestartPolicy policy({});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(policy.on_end(kKilled, kSecond, 0).what, What::restart);
  EXPECT_EQ(policy.on_end(kKilled, 20 * kSecond, 0).what, What::restart);  // no longer in a row
  for (int i = 0; i < 4; ++i) EXPECT_EQ(policy.on_end(kKilled, kSecond, 0).what, What::restart);
  const auto last = policy.on_end(kKilled, kSecond, 0);
  EXPECT_EQ(last.what, What::give_up);
  EXPECT_EQ(last.reason, "it failed 5 times in a row within 10 s of its start");
}

// Whoever makes room ends it; a gateway that gave up meanwhile would take its site out for good.
TEST(RestartPolicy, WaitsForRoomOnTheDiskForAsLongAsItTakes) {
  RestartPolicy policy({});
  constexpr ProcessEnd kNoRoom{.code = 7, .signal = 0};
  for (int i = 0; i < 1000; ++i) {
    const auto decision = policy.on_end(kNoRoom, kSecond / 10, 0);
    ASSERT_EQ(decision.what, What::restart) << i;
    EXPECT_LE(decision.delay, 5 * kSecond);
  }
  EXPECT_EQ(policy.on_end(kKilled, 60 * kSecond, 0).delay, kSecond / 2);
  EXPECT_EQ(kNoRoom.text(), "found no room on the disk");
}

// A damaged step, an exhausted machine: each life is long, and comes to nothing.
TEST(RestartPolicy, GivesUpAfterFailuresWithoutProgress) {
  RestartPolicy policy({});
  constexpr Nanoseconds kLong = 600 * kSecond;
  for (int i = 0; i < 11; ++i) EXPECT_EQ(policy.on_end(kBroken, kLong, 40).what, What::restart);
  for (int i = 0; i < 11; ++i) EXPECT_EQ(policy.on_end(kBroken, kLong, 41).what, What::restart);
  const auto last = policy.on_end(kBroken, kLong, 41);
  EXPECT_EQ(last.what, What::give_up);
  EXPECT_EQ(last.reason, "it failed 12 times without a new checkpoint or outer step");
}

TEST(ProcessEnd, Text) {
  EXPECT_EQ(kBroken.text(), "ended with exit code 5");
  EXPECT_EQ(kKilled.text(), "ended by signal 9 (Killed)");
}

}  // namespace
}  // namespace isthmus::launcher

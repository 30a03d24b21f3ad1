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
  EXPECT_EQ(policy.on_end({.code = 0, .signal = 0}, kSecond).what, What::finished);
  EXPECT_EQ(policy.on_end({.code = 3, .signal = 0}, kSecond).what, What::stopped);
  EXPECT_EQ(policy.on_end({.code = 2, .signal = 0}, 100 * kSecond).what, What::give_up);
  for (const auto& end : {kKilled, kBroken, ProcessEnd{.code = 1, .signal = 0},
                          ProcessEnd{.code = 4, .signal = 0}, ProcessEnd{.code = 2, .signal = 9}})
    EXPECT_EQ(policy.on_end(end, 20 * kSecond).what, What::restart) << end.text();
}

TEST(RestartPolicy, DelaysDoubleAndAreForgotten) {
  RestartPolicy policy({});
  EXPECT_EQ(policy.on_end(kKilled, 20 * kSecond).delay, kSecond / 2);
  EXPECT_EQ(policy.on_end(kKilled, 20 * kSecond).delay, kSecond);
  EXPECT_EQ(policy.on_end(kBroken, 20 * kSecond).delay, 2 * kSecond);
  for (int i = 0; i < 100; ++i) EXPECT_LE(policy.on_end(kKilled, 20 * kSecond).delay, 30 * kSecond);
  EXPECT_EQ(policy.on_end(kKilled, 20 * kSecond).delay, 30 * kSecond);
  EXPECT_EQ(policy.on_end(kKilled, 60 * kSecond).delay, kSecond / 2);
}

TEST(RestartPolicy, GivesUpAfterInstantFailuresInARow) {
  RestartPolicy policy({});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(policy.on_end(kKilled, kSecond).what, What::restart);
  EXPECT_EQ(policy.on_end(kKilled, 20 * kSecond).what, What::restart);  // no longer in a row
  for (int i = 0; i < 4; ++i) EXPECT_EQ(policy.on_end(kKilled, kSecond).what, What::restart);
  const auto last = policy.on_end(kKilled, kSecond);
  EXPECT_EQ(last.what, What::give_up);
  EXPECT_EQ(last.reason, "it failed 5 times in a row within 10 s of its start");
}

TEST(ProcessEnd, Text) {
  EXPECT_EQ(kBroken.text(), "ended with exit code 5");
  EXPECT_EQ(kKilled.text(), "was ended by signal 9 (Killed)");
}

}  // namespace
}  // namespace isthmus::launcher

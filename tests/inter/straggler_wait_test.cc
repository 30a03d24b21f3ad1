#include "inter/straggler_wait.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isthmus::inter {
namespace {

TEST(StragglerWait, IsAsLongAsAStepTakesWithItsDeviations) {
  StragglerWait wait(std::nullopt);
  for (int i = 0; i < 100; ++i) wait.add_step((i % 2 == 0 ? 3000 : 3600) * kSecond);
  EXPECT_GT(wait.most(), 3600 * kSecond);
  EXPECT_LT(wait.most(), 2 * 3600 * kSecond);
  EXPECT_THAT(wait.why(), testing::ContainsRegex("^a step takes 3[23].*s here, give or take"));
}

TEST(StragglerWait, IsTenMinutesAtLeast) {
  StragglerWait wait(std::nullopt);
  EXPECT_EQ(wait.most(), 600 * kSecond);
  for (int i = 0; i < 100; ++i) wait.add_step(400 * kMillisecond);
  EXPECT_EQ(wait.most(), 600 * kSecond);
  EXPECT_EQ(wait.why(), "ten minutes, as no straggler_wait is set");
}

TEST(StragglerWait, IsWhatWasChosenWhateverStepsTake) {
  for (const auto chosen : {Nanoseconds{0}, 5 * kSecond, 10'000 * kSecond}) {
    StragglerWait wait(chosen);
    for (int i = 0; i < 10; ++i) wait.add_step(1000 * kSecond);
    EXPECT_EQ(wait.most(), chosen);
    EXPECT_EQ(wait.why(), "straggler_wait");
  }
}

// As late as it is waited for, each time: what is learnt of that stays bounded.
TEST(StragglerWait, WhoContributesEverLaterIsNotWaitedForEverLonger) {
  const StragglerWait wait(std::nullopt);
  Learnt lateness;
  for (int i = 0; i < 1000; ++i) {
    const auto late = i % 7 == 0 ? 0 : lateness.spread() + wait.most();
    wait.learn(lateness, late);
  }
  EXPECT_LT(lateness.spread(), 3 * wait.most());
}

}  // namespace
}  // namespace isthmus::inter

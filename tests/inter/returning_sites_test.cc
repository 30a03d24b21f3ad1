#include "inter/returning_sites.h"

#include <gtest/gtest.h>

namespace isthmus::inter {
namespace {

// ---- What is kept, and for how long

constexpr SiteId kSite = 3;
constexpr Nanoseconds kAwaitedFor = 2 * kSecond;

TEST(KeptForReturn, AboutTwoStatesAndAllThatIsSmall) {
  const std::uint64_t gigabyte = 1'000'000'000;
  EXPECT_EQ(steps_kept_for_return(8 * gigabyte, 4 * gigabyte), 4U);
  EXPECT_EQ(steps_kept_for_return(8 * gigabyte, 64 * gigabyte), 0U);
  EXPECT_EQ(steps_kept_for_return(16'000, 6'000), 256U);
  EXPECT_EQ(steps_kept_for_return(0, 0), 256U);
}

TEST(ReturningSites, WhatFollowsAStateIsKeptUntilItIsReplayed) {
  ReturningSites sites(100);
  EXPECT_EQ(sites.keep_from(10, 0), 10U);
  sites.asks_for_state(kSite, 10, false, 9);
  sites.asks_for_state(kSite, 12, false, 9);
  EXPECT_EQ(sites.keep_from(20, 0), 11U) << "the first one may still be chosen";
  sites.asks_for_state(kSite, 12, true, 11);
  sites.works_on(kSite, 3, 21, 11, 0);  // as long as it fetches
  EXPECT_EQ(sites.keep_from(20, 0), 13U);
  sites.works_on(kSite, 13, 22, 13, 0);
  sites.works_on(kSite, 17, 23, 13, 0);
  EXPECT_EQ(sites.keep_from(22, 0), 17U);
  sites.works_on(kSite, 23, 23, 17, 0);
  EXPECT_EQ(sites.keep_from(22, 0), 22U);
}

// While it fetches a state it says that it works on an old step; when that is too old to be kept,
// it goes on from the state all the same.
TEST(ReturningSites, WhatFollowsAStateIsKeptAlsoWhereWhatCameBeforeIsTooOld) {
  ReturningSites sites(5);
  sites.works_on(kSite, 3, 9, 3, 0);
  EXPECT_EQ(sites.keep_from(8, 0), 3U);
  sites.asks_for_state(kSite, 8, true, 3);
  sites.works_on(kSite, 3, 10, 3, 0);  // heartbeats
  EXPECT_EQ(sites.keep_from(8, 0), 3U) << "it may replay after all";
  EXPECT_EQ(sites.keep_from(9, 0), 9U);
  sites.works_on(kSite, 3, 12, 9, 0);
  EXPECT_EQ(sites.keep_from(11, 0), 9U);
  sites.works_on(kSite, 9, 13, 9, 0);
  EXPECT_EQ(sites.keep_from(12, 0), 9U);
  sites.works_on(kSite, 13, 13, 9, 0);
  EXPECT_EQ(sites.keep_from(12, 0), 12U);
}

TEST(ReturningSites, WhatIsGoneIsNotPromised) {
  ReturningSites sites(100);
  sites.asks_for_state(kSite, 7, true, 9);
  sites.works_on(kSite, 8, 12, 9, 0);
  EXPECT_EQ(sites.keep_from(10, 0), 10U);
}

TEST(ReturningSites, NothingIsKeptBeyondTheBoundNorForWhoIsGone) {
  ReturningSites sites(5);
  sites.asks_for_state(kSite, 10, true, 9);
  EXPECT_EQ(sites.keep_from(16, 0), 11U);
  EXPECT_EQ(sites.keep_from(17, 0), 17U) << "too late for it";
  sites.asks_for_state(kSite, 17, true, 17);
  sites.went_away(kSite, kSecond);
  EXPECT_EQ(sites.keep_from(19, 60 * kSecond), 18U);
  EXPECT_EQ(sites.keep_from(19, 62 * kSecond), 19U);
}

// ---- Who is waited for

class AwaitedTest : public testing::Test {
 protected:
  // It replays step 11, ten behind.
  AwaitedTest() { works_on(11); }
  void works_on(std::uint64_t step) { sites.works_on(kSite, step, newest, 5, now); }
  bool awaited() const { return sites.awaited(kSite, newest, 5, now, kAwaitedFor); }
  void next_step() {
    ++newest;
    sites.begin_step();
  }

  void works_on_the_next_four(Nanoseconds each) {
    for (std::uint64_t step = 12; step < 16; ++step) {
      now += each;
      works_on(step);
      next_step();
    }
  }

  ReturningSites sites{100};
  std::uint64_t newest = 21;
  Nanoseconds now = 100 * kSecond;
};

TEST_F(AwaitedTest, UntilItHasReplayedTwoSteps) {
  EXPECT_TRUE(awaited());
  now += kSecond;
  works_on(12);
  EXPECT_TRUE(awaited());
  now += kSecond;
  works_on(13);
  EXPECT_FALSE(awaited());
  next_step();
  EXPECT_TRUE(awaited());
}

TEST_F(AwaitedTest, NotWhenItStandsStill) {
  now += kAwaitedFor;
  EXPECT_FALSE(awaited());
  works_on(11);
  EXPECT_FALSE(awaited());
  works_on(12);
  EXPECT_TRUE(awaited());
}

TEST_F(AwaitedTest, LongerIfItsStepsTakeLonger) {
  works_on_the_next_four(8 * kSecond);
  now += 15 * kSecond;
  EXPECT_TRUE(awaited());
  now += 60 * kSecond;
  EXPECT_FALSE(awaited());
}

// Ten behind: twenty times its patience, of which an eighth of the time is forgiven.
TEST_F(AwaitedTest, AsLongAsTwiceTheStepsThatItWasBehindMayTake) {
  Nanoseconds held = 0;
  const auto hold = [&] {
    sites.holds_up(kSite, now);
    now += kSecond;
    held += kSecond;
    sites.holds_up(kSite, now);
    next_step();
    works_on(newest - 10);
  };
  while (awaited()) hold();
  EXPECT_GT(held, 30 * kSecond);
  EXPECT_LE(held, 40 * kSecond);
  sites.is_member(kSite);
  works_on(newest - 10);
  EXPECT_FALSE(awaited()) << "what it says of itself forgives nothing";
  held = 0;
  for (int minute = 0; minute < 60; ++minute) {
    for (int second = 0; second < 60; ++second) {
      works_on(newest - 10);
      if (awaited()) {
        hold();
      } else {
        now += kSecond;
        next_step();
      }
    }
  }
  EXPECT_GT(held, 3600 * kSecond / 12);
  EXPECT_LE(held, 3600 * kSecond / 8);
}

// It goes to and fro, which is no replay, and says that it is far behind.
TEST_F(AwaitedTest, WhateverItSaysNoMoreThanAMinuteInOneStep) {
  newest = 211;
  const auto held_up = [&] {
    Nanoseconds held = 0;
    for (int i = 0; awaited() && held < 300 * kSecond; ++i) {
      if (i % 4 == 0)
        for (const std::uint64_t step : {12, 11}) {
          sites.asks_for_state(kSite, 8, false, 5);
          works_on(step);
        }
      sites.holds_up(kSite, now);
      now += kSecond / 4;
      held += kSecond / 4;
    }
    return held;
  };
  EXPECT_NEAR(seconds_of(held_up()), 60, 1);
  next_step();
  EXPECT_NEAR(seconds_of(held_up()), 60, 1);
}

// It replays as slowly as it is waited for, over a long way, and is 200 steps behind.
TEST_F(AwaitedTest, HoweverFarBehindNoMoreThanFiveMinutesBesideAnEighth) {
  newest = 211;
  const auto patience = 10 * kSecond, began = now;
  Nanoseconds held = 0;
  for (std::uint64_t step = 12; held < 3600 * kSecond; ++step) {
    const auto before = held;
    while (sites.awaited(kSite, newest, 5, now, patience) && held - before < 9 * kSecond) {
      sites.holds_up(kSite, now);
      now += kSecond / 4;
      held += kSecond / 4;
    }
    if (held == before) break;
    works_on(step);
    if (step % 2 == 1) next_step();
  }
  EXPECT_GT(held, 240 * kSecond);
  EXPECT_LE(held, 300 * kSecond + (now - began) / 8 + kSecond);
}

TEST_F(AwaitedTest, ToGoBackIsNoProgress) {
  now += kAwaitedFor - kSecond / 2;
  works_on(10);
  EXPECT_TRUE(awaited());
  now += kSecond / 2;
  EXPECT_FALSE(awaited());
}

// Other things were waited for meanwhile.
TEST_F(AwaitedTest, WhatItDidNotHoldUpIsNotCharged) {
  sites.holds_up(kSite, now);
  now += 100 * kSecond;
  sites.holds_up(kSite, now);
  EXPECT_TRUE(sites.may_hold_up(kSite, 2 * kSecond, now));
  EXPECT_FALSE(sites.may_hold_up(kSite, kSecond, now));
}

TEST_F(AwaitedTest, HoweverLongItSaysThatItsStepsTakeNoMoreThanAMinute) {
  works_on_the_next_four(3600 * kSecond);
  now += 59 * kSecond;
  EXPECT_TRUE(awaited());
  now += 2 * kSecond;
  EXPECT_FALSE(awaited());
}

TEST_F(AwaitedTest, NotWhileItFetchesNorWhenItIsCurrentNorAway) {
  EXPECT_FALSE(sites.awaited(kSite, newest, 12, now, kAwaitedFor));
  works_on(newest);
  EXPECT_FALSE(awaited());
  next_step();
  EXPECT_TRUE(awaited());
  sites.went_away(kSite, now);
  EXPECT_FALSE(awaited());
}

}  // namespace
}  // namespace isthmus::inter

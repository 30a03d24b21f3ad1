#include "inter/rank_pulse.h"

#include <gtest/gtest.h>

namespace isthmus::inter {
namespace {

// Ranks that say something every two seconds.
class RankPulseTest : public testing::Test {
 protected:
  void SetUp() override {
    pulse.attached(now, true);
    pulse.told(now);
    for (int i = 0; i < 50; ++i) pulse.note(now += 2 * kSecond);
  }
  Nanoseconds now = 1000 * kSecond;
  RankPulse pulse;
};

TEST_F(RankPulseTest, SilenceFarBeyondWhatWasUsualIsNoProgress) {
  EXPECT_TRUE(pulse.live(now + 30 * kSecond));
  EXPECT_TRUE(pulse.compute(now + 30 * kSecond));
  EXPECT_FALSE(pulse.live(now + 60 * kSecond));
  EXPECT_FALSE(pulse.compute(now + 60 * kSecond));
  pulse.note(now + 61 * kSecond);
  EXPECT_TRUE(pulse.compute(now + 61 * kSecond));
}

TEST_F(RankPulseTest, SilentRanksHangUntilTheySaySomething) {
  RankPulse ranks;
  EXPECT_FALSE(ranks.hang(1000 * kSecond)) << "none are there";
  ranks.attached(0, false);
  EXPECT_FALSE(ranks.hang(599 * kSecond));
  EXPECT_TRUE(ranks.hang(600 * kSecond)) << "they offer nothing";
  ranks.offered();
  EXPECT_EQ(ranks.silence(9000 * kSecond), 0) << "the run has not begun";
  EXPECT_FALSE(ranks.hang(9000 * kSecond));
  now = 9000 * kSecond;
  ranks.told(now);
  EXPECT_EQ(ranks.patience(), 600 * kSecond) << "a first step may take long";
  EXPECT_FALSE(ranks.hang(now + 599 * kSecond));
  EXPECT_TRUE(ranks.hang(now + 600 * kSecond));
  for (int i = 0; i < 10; ++i) ranks.note(now += kSecond);
  EXPECT_GE(ranks.patience(), 30 * kSecond);
  EXPECT_LT(ranks.patience(), 60 * kSecond);
  EXPECT_FALSE(ranks.hang(now + 10 * kSecond));
  EXPECT_EQ(ranks.silence(now + 10 * kSecond), 10 * kSecond);
  EXPECT_TRUE(ranks.hang(now + 90 * kSecond));
  EXPECT_EQ(ranks.silence(now + 90 * kSecond), 90 * kSecond);
  ranks.note(now += 91 * kSecond);
  EXPECT_FALSE(ranks.hang(now + kSecond));
  ranks.handed_over(now);
  EXPECT_FALSE(ranks.hang(now + 1000 * kSecond));
  EXPECT_EQ(ranks.silence(now + 1000 * kSecond), 0) << "they wait for a state";
}

TEST_F(RankPulseTest, SlowRanksMayBeSilentForLonger) {
  RankPulse slow;
  slow.attached(0, true);
  slow.told(0);
  EXPECT_TRUE(slow.live(500 * kSecond)) << "a first step may take long";
  Nanoseconds at = 0;
  for (int i = 0; i < 50; ++i) slow.note(at += 100 * kSecond);
  EXPECT_TRUE(slow.live(at + 300 * kSecond));
  EXPECT_FALSE(slow.live(at + 1000 * kSecond));
}

TEST_F(RankPulseTest, WhoWaitsForAStateOwesNoNote) {
  pulse.handed_over(now);
  EXPECT_TRUE(pulse.compute(now + 3600 * kSecond));
  now += 3600 * kSecond;
  pulse.told(now);
  EXPECT_TRUE(pulse.compute(now + 30 * kSecond));
  EXPECT_FALSE(pulse.compute(now + 60 * kSecond));
  // Another state is no sign of life.
  pulse.told(now + 59 * kSecond);
  EXPECT_FALSE(pulse.compute(now + 60 * kSecond));
  // The wait does not count as time between notes.
  pulse.note(now += 2 * kSecond);
  EXPECT_FALSE(pulse.live(now + 60 * kSecond));
}

TEST_F(RankPulseTest, RanksThatComeBackComputeWhenTheySaySo) {
  pulse.detached();
  EXPECT_FALSE(pulse.here());
  EXPECT_FALSE(pulse.live(now));
  pulse.attached(now, true);
  EXPECT_TRUE(pulse.live(now));
  EXPECT_FALSE(pulse.compute(now));
  pulse.note(now);
  EXPECT_TRUE(pulse.compute(now));
}

TEST(ComputedFor, IsFromAStateToTheContribution) {
  RankPulse pulse;
  pulse.attached(0, true);
  EXPECT_EQ(pulse.handed_over(kSecond), std::nullopt) << "of no state";
  pulse.detached();
  pulse.attached(2 * kSecond, true);
  pulse.told(50'000 * kSecond);  // the run begins when the last site has come
  pulse.note(50'003 * kSecond);
  EXPECT_EQ(pulse.handed_over(50'010 * kSecond), 10 * kSecond);
  pulse.told(50'400 * kSecond);
  EXPECT_EQ(pulse.handed_over(50'411 * kSecond), 11 * kSecond);
  EXPECT_EQ(pulse.handed_over(50'420 * kSecond), std::nullopt) << "they went on without a new one";
  pulse.told(50'430 * kSecond);
  pulse.detached();
  pulse.attached(50'500 * kSecond, true);
  EXPECT_EQ(pulse.handed_over(50'501 * kSecond), std::nullopt);
}

}  // namespace
}  // namespace isthmus::inter

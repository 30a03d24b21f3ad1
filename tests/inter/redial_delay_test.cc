#include "inter/redial_delay.h"

#include <gtest/gtest.h>

namespace isthmus::inter {
namespace {

constexpr auto kMs = kMillisecond;

class RedialDelayTest : public testing::Test {
 protected:
  // An attempt that ends after `lasts`, or lives from then on.
  Nanoseconds fails_after(Nanoseconds lasts) {
    delay_.dialing(now_, 2 * kSecond);
    now_ += lasts;
    return delay_.ended(now_, false);
  }
  void comes_up_after(Nanoseconds lasts) {
    delay_.dialing(now_, 2 * kSecond);
    now_ += lasts;
    delay_.up(now_);
  }
  Nanoseconds ends_after(Nanoseconds life) {
    now_ += life;
    return delay_.ended(now_, true);
  }

  RedialDelay delay_{200 * kMs, 5 * kSecond};
  Nanoseconds now_ = 1000 * kSecond;
};

TEST_F(RedialDelayTest, DoublesWhileThePeerRefuses) {
  EXPECT_EQ(fails_after(kMs), 200 * kMs);
  EXPECT_EQ(fails_after(kMs), 400 * kMs);
  for (int i = 0; i < 5; ++i) fails_after(kMs);
  EXPECT_EQ(fails_after(kMs), 5 * kSecond);
  EXPECT_EQ(fails_after(2 * kSecond), 200 * kMs) << "silence";
  comes_up_after(kMs);
  EXPECT_EQ(ends_after(10 * kSecond), 200 * kMs) << "it was a good one";
}

TEST_F(RedialDelayTest, AttemptsAreShortAfterAConnectionThatCameUpSoon) {
  EXPECT_EQ(delay_.dialing(now_, 2 * kSecond), 2 * kSecond) << "nothing is known of the way";
  comes_up_after(100 * kMs);
  ends_after(10 * kSecond);
  EXPECT_EQ(delay_.dialing(now_, 2 * kSecond), 400 * kMs);
  EXPECT_EQ(delay_.dialing(now_, 300 * kMs), 300 * kMs) << "never longer than is allowed";
  now_ += 400 * kMs;
  EXPECT_EQ(delay_.ended(now_, false), 200 * kMs) << "that is silence";
}

// libzmq is told whole milliseconds, and counts them from another moment.
TEST_F(RedialDelayTest, SilenceThatATimerEndsEarlyIsNoRefusal) {
  comes_up_after(437'900 * kMicrosecond);
  ends_after(10 * kSecond);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(fails_after(436 * kMs), 200 * kMs) << i;
  EXPECT_EQ(fails_after(300 * kMs), 400 * kMs) << "that is a refusal";
  EXPECT_EQ(fails_after(300 * kMs), 800 * kMs);
}

TEST_F(RedialDelayTest, ALongWayHasItsTime) {
  comes_up_after(1500 * kMs);
  ends_after(10 * kSecond);
  EXPECT_EQ(delay_.dialing(now_, 2 * kSecond), 1500 * kMs);
  comes_up_after(4 * kSecond);
  ends_after(10 * kSecond);
  EXPECT_EQ(delay_.dialing(now_, 2 * kSecond), 2 * kSecond);
}

// It may have become longer meanwhile.
TEST_F(RedialDelayTest, AfterAMinuteTheWayIsNotKnownAnyMore) {
  comes_up_after(100 * kMs);
  ends_after(10 * kSecond);
  now_ += 59 * kSecond;
  EXPECT_EQ(delay_.dialing(now_, 2 * kSecond), 400 * kMs);
  now_ += 2 * kSecond;
  EXPECT_EQ(delay_.dialing(now_, 2 * kSecond), 2 * kSecond);
}

}  // namespace
}  // namespace isthmus::inter

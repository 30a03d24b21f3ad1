#include "inter/redial_delay.h"

#include <gtest/gtest.h>

namespace isthmus::inter {
namespace {

constexpr auto kMs = kMillisecond;

class RedialDelayTest : public testing::Test {
 protected:
  // An attempt that ends after `lasts` without TCP, or lives from then on.
  Nanoseconds fails_after(Nanoseconds lasts) {
    delay_.dialing(now_, 2 * kSecond);
    now_ += lasts;
    return delay_.ended(now_, false);
  }
  void connects_after(Nanoseconds lasts) {
    delay_.dialing(now_, 2 * kSecond);
    now_ += lasts;
    delay_.connected(now_);
  }
  void comes_up_after(Nanoseconds connect, Nanoseconds handshake = 0) {
    connects_after(connect);
    now_ += handshake;
    delay_.up(now_);
  }
  Nanoseconds ends_after(Nanoseconds life) {
    now_ += life;
    return delay_.ended(now_, true);
  }
  Nanoseconds patience(Nanoseconds longest = 2 * kSecond) { return delay_.dialing(now_, longest); }

  RedialDelay delay_{200 * kMs, 5 * kSecond};
  Nanoseconds now_ = 1000 * kSecond;
};

TEST_F(RedialDelayTest, DoublesWhileThePeerRefuses) {
  EXPECT_EQ(fails_after(kMs), 200 * kMs);
  EXPECT_EQ(fails_after(kMs), 400 * kMs);
  for (int i = 0; i < 5; ++i) fails_after(kMs);
  EXPECT_EQ(fails_after(kMs), 5 * kSecond);
  EXPECT_EQ(fails_after(2 * kSecond), 0) << "silence";
  comes_up_after(kMs);
  EXPECT_EQ(ends_after(10 * kSecond), 200 * kMs) << "it was a good one";
}

TEST_F(RedialDelayTest, AttemptsAreShortAfterAConnectionThatCameUpSoon) {
  EXPECT_EQ(patience(), 2 * kSecond) << "nothing is known of the way";
  comes_up_after(100 * kMs);
  ends_after(10 * kSecond);
  EXPECT_EQ(patience(), 400 * kMs);
  EXPECT_EQ(patience(300 * kMs), 300 * kMs) << "never longer than is allowed";
  now_ += 400 * kMs;
  EXPECT_EQ(delay_.ended(now_, false), 0) << "that is silence";
}

// libzmq is told whole milliseconds, and counts them from another moment.
TEST_F(RedialDelayTest, SilenceThatATimerEndsEarlyIsNoRefusal) {
  comes_up_after(218'950 * kMicrosecond);
  ends_after(10 * kSecond);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(fails_after(436 * kMs), 0) << i;
  EXPECT_EQ(fails_after(300 * kMs), 400 * kMs) << "that is a refusal";
}

TEST_F(RedialDelayTest, ALongWayHasItsTime) {
  comes_up_after(300 * kMs);
  ends_after(10 * kSecond);
  EXPECT_EQ(patience(), 600 * kMs);
  // A packet that was lost right after the repair costs little more than its round trip, in which
  // TCP alone would have asked once.
  EXPECT_LE(patience() + fails_after(600 * kMs), 2 * 300 * kMs);
  comes_up_after(999 * kMs);
  ends_after(10 * kSecond);
  EXPECT_EQ(patience(), 1998 * kMs);
}

// Neither a slow answer of a name server nor the handshakes, of several round trips, count.
TEST_F(RedialDelayTest, OnlyTheTimeOfTcpCounts) {
  delay_.looking_up(now_);
  now_ += 5 * kSecond;
  comes_up_after(250 * kMs, 4 * kSecond);
  ends_after(10 * kSecond);
  EXPECT_EQ(patience(), 500 * kMs);
}

// TCP has then asked twice: the way may be as long as that, or the first packet was lost.
TEST_F(RedialDelayTest, AConnectionThatTookASecondTellsNothingOfTheWay) {
  comes_up_after(1050 * kMs);
  ends_after(10 * kSecond);
  EXPECT_EQ(patience(), 2 * kSecond);
}

// It may come after a few round trips, and patience is for the first of them.
TEST_F(RedialDelayTest, ARefusalInTheHandshakeIsNoSilence) {
  comes_up_after(150 * kMs);
  ends_after(10 * kSecond);
  for (const auto delay : {400 * kMs, 800 * kMs, 1600 * kMs}) {
    connects_after(150 * kMs);
    now_ += 450 * kMs;
    EXPECT_EQ(delay_.ended(now_, false), delay);
  }
  connects_after(150 * kMs);
  now_ += 5 * kSecond;
  EXPECT_EQ(delay_.ended(now_, false), 0) << "that is one";
}

TEST_F(RedialDelayTest, ANameThatIsNotFoundIsARefusal) {
  comes_up_after(kMs);
  ends_after(10 * kSecond);
  EXPECT_EQ(fails_after(400 * kMs), 0) << "patience with TCP is shorter than with a look-up";
  for (const auto delay : {400 * kMs, 500 * kMs}) {
    delay_.looking_up(now_);
    now_ += 500 * kMs;
    EXPECT_EQ(delay_.ended(now_, false), delay);
  }
  delay_.looking_up(now_);
  now_ += 10 * kSecond;
  EXPECT_EQ(delay_.ended(now_, false), 0) << "no server answered";
}

// Else a way that has become longer, or has a queue, would be closed for half a minute.
TEST_F(RedialDelayTest, EachFourthAttemptHasThreeTimesAsLong) {
  comes_up_after(100 * kMs);
  ends_after(10 * kSecond);
  for (int i = 0; i < 3; ++i)
    for (const auto expected : {400 * kMs, 400 * kMs, 400 * kMs, 600 * kMs})
      EXPECT_EQ(patience(), expected) << i;
  patience();
  comes_up_after(250 * kMs);
  ends_after(10 * kSecond);
  for (const auto expected : {500 * kMs, 500 * kMs, 500 * kMs, 1500 * kMs})
    EXPECT_EQ(patience(), expected);
}

// A route that is gone, or a router that says so, refuses as a peer does that starts again: within
// microseconds. All may be back at any time.
TEST_F(RedialDelayTest, RefusalsAreTriedAgainSoonForHalfAMinute) {
  comes_up_after(20 * kMs);
  EXPECT_EQ(ends_after(10 * kSecond), 200 * kMs);
  const auto ended = now_;
  EXPECT_EQ(fails_after(kMs), 400 * kMs);
  while (now_ - ended < 29 * kSecond) {
    now_ += 500 * kMs;
    EXPECT_EQ(fails_after(kMs), 500 * kMs) << (now_ - ended) / kMs;
  }
  now_ += kSecond;
  EXPECT_EQ(fails_after(kMs), 5 * kSecond);
}

// It may have become longer meanwhile.
TEST_F(RedialDelayTest, AfterHalfAMinuteTheWayIsNotKnownAnyMore) {
  comes_up_after(100 * kMs);
  ends_after(10 * kSecond);
  now_ += 29 * kSecond;
  EXPECT_EQ(patience(), 400 * kMs);
  now_ += 2 * kSecond;
  EXPECT_EQ(patience(), 2 * kSecond);
}

}  // namespace
}  // namespace isthmus::inter

#include "inter/round_trip.h"

#include <gtest/gtest.h>

#include "tests/inter/link_world.h"

namespace isthmus::inter {
namespace {

TEST(RoundTrip, FollowsTheEchoesOfStampsThatWereSent) {
  RoundTrip trip;
  EXPECT_EQ(trip.mean(), 0);
  trip.stamp_sent(1000);
  trip.echoed(1700, 1000, 200);
  EXPECT_EQ(trip.mean(), 500);
  trip.echoed(90000, 1000, 0);  // a second time
  EXPECT_EQ(trip.mean(), 500);
}

TEST(RoundTrip, RemembersTheLongestForAWhile) {
  RoundTrip trip;
  const auto sample = [&](Nanoseconds now, Nanoseconds took) {
    trip.stamp_sent(now - took);
    trip.echoed(now, now - took, 0);
  };
  EXPECT_EQ(trip.longest(12 * kSecond), 0);
  sample(12 * kSecond, 300 * kMillisecond);
  sample(13 * kSecond, 40 * kMillisecond);
  EXPECT_EQ(trip.longest(14 * kSecond), 300 * kMillisecond);
  sample(16 * kSecond, 50 * kMillisecond);
  EXPECT_EQ(trip.longest(17 * kSecond), 300 * kMillisecond);
  EXPECT_EQ(trip.longest(21 * kSecond), 50 * kMillisecond);
  EXPECT_EQ(trip.longest(26 * kSecond), 0);
  sample(33 * kSecond, 60 * kMillisecond);
  EXPECT_EQ(trip.longest(33 * kSecond), 60 * kMillisecond);
}

TEST(RoundTrip, NobodyCanStretchItByWords) {
  RoundTrip trip;
  trip.stamp_sent(kSecond);
  for (const auto echo :
       {INT64_MIN, Nanoseconds{-1}, Nanoseconds{0}, kSecond - 1, kSecond + 1, INT64_MAX})
    for (const auto held : {INT64_MIN, Nanoseconds{-1}, Nanoseconds{0}, INT64_MAX})
      trip.echoed(2 * kSecond, echo, held);
  EXPECT_EQ(trip.mean(), 0) << "of a stamp that was never sent";
  for (const auto held : {INT64_MIN, Nanoseconds{-1}, kSecond + 1, INT64_MAX}) {
    trip.stamp_sent(2 * kSecond);
    trip.echoed(3 * kSecond, 2 * kSecond, held);
  }
  EXPECT_EQ(trip.mean(), 0) << "held for longer than it was away";
  // Who really is slow is believed up to a bound.
  for (int i = 1; i <= 100; ++i) {
    trip.stamp_sent(i * 1000 * kSecond);
    trip.echoed(i * 1000 * kSecond + 900 * kSecond, i * 1000 * kSecond, 0);
  }
  EXPECT_LE(trip.mean(), RoundTrip::kSampleMax);
}

TEST(Link, ForgedEchoesDoNotStretchTheRoundTrip) {
  ScriptedPeer peer;
  peer.begin_session();
  peer.run_for(5 * kSecond);
  for (const auto echo : {INT64_MIN, Nanoseconds{0}, INT64_MAX, kSecond / 2})
    for (const auto held : {INT64_MIN, Nanoseconds{0}, Nanoseconds{1}, INT64_MAX}) {
      Ack ack;
      ack.session = peer.session;
      ack.echo = echo;
      ack.held = held;
      peer.control(ack.encode());
    }
  EXPECT_EQ(peer.link.round_trip(), 0);
}

}  // namespace
}  // namespace isthmus::inter

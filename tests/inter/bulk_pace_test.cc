// How fast each bulk connection of a link may send: what the kernel is told, from what it tells and
// what the peer's acks do.
#include <gtest/gtest.h>

#include <deque>
#include <utility>

#include "inter/bulk_width.h"
#include "inter/link.h"
#include "tests/inter/bulk_session.h"

namespace isthmus::inter {
namespace {

// Each connection carries 5 MB/s, behind a queue far too long.
void send_for(ScriptedPeer& peer, Nanoseconds time) {
  for (const auto end = peer.simulation.now() + time; peer.simulation.now() < end;) {
    peer.run_for(10 * kMillisecond);
    for (auto& path : peer.paths) {
      path.tcp.round_trip_min = 100 * kMillisecond;
      path.tcp.round_trip = 320 * kMillisecond;
      path.tcp.unsent_bytes = 1000;
      path.tcp.delivered_bytes += 50'000;
    }
  }
}

// Each of them takes the line for its own.
TEST(Link, ConnectionsUnderBbrShareThePaceOfTheLine) {
  ScriptedPeer peer;
  peer.paths = {path_with("bbr", 2), path_with("bbr", 3)};
  begin_on_two_connections(peer, 1000);
  peer.link.offer(5, 0, 1000, std::make_shared<NumberedChunks>(100), false);
  EXPECT_EQ(peer.paces.size(), 0U);
  send_for(peer, 3 * kSecond);
  ASSERT_TRUE(peer.paces[2]);
  // 10 MB/s of the line, with a queue far too long.
  EXPECT_NEAR(*peer.paces[2], 3.75e6, 1e5);
  EXPECT_EQ(peer.paces[3], peer.paces[2]);
  peer.paths[1].tcp.unsent_bytes = 0;
  peer.run_for(50 * kMillisecond);
  EXPECT_NEAR(*peer.paces[2], 7.5e6, 2e5) << "the other one has nothing to send";
  peer.link.withdraw(5);
  EXPECT_EQ(peer.paces[2], std::nullopt);
  EXPECT_EQ(peer.paces[3], std::nullopt);
}

// A link test paces the same connections (inter/link_tester.h), and frees them when it ends.
TEST(Link, APaceIsKeptUpWhateverElsePacedTheConnection) {
  ScriptedPeer peer;
  peer.paths = {path_with("bbr", 2), path_with("bbr", 3)};
  begin_on_two_connections(peer, 1000);
  peer.link.offer(5, 0, 1000, std::make_shared<NumberedChunks>(100), false);
  send_for(peer, 3 * kSecond);
  const auto paces = peer.paces;
  ASSERT_TRUE(paces.at(2));
  for (const auto connection : {2, 3}) peer.pace({}, connection, std::nullopt);
  peer.run_for(50 * kMillisecond);
  EXPECT_EQ(peer.paces, paces);
}

// BBR looks for the shortest round trip: four packets are on their way.
TEST(Link, WhatOneCannotUseIsForTheOthers) {
  ScriptedPeer peer;
  peer.paths = {path_with("bbr", 2), path_with("bbr", 3)};
  for (auto& path : peer.paths) path.tcp.window_bytes = 4'000'000;
  begin_on_two_connections(peer, 1000);
  peer.link.offer(5, 0, 1000, std::make_shared<NumberedChunks>(100), false);
  send_for(peer, 3 * kSecond);
  ASSERT_TRUE(peer.paces[2]);
  const auto shared = *peer.paces[2];
  EXPECT_EQ(peer.paces[3], shared);
  peer.paths[1].tcp.window_bytes = 4 * 1448;
  peer.run_for(50 * kMillisecond);
  EXPECT_NEAR(*peer.paces[2], 2 * shared, 0.05 * shared);
  for (auto& path : peer.paths) path.tcp.window_bytes = 4 * 1448;
  peer.run_for(50 * kMillisecond);
  EXPECT_NEAR(*peer.paces[2], shared, 0.05 * shared) << "nobody can: their windows will widen";
  EXPECT_EQ(peer.paces[3], peer.paces[2]);
}

// After a moment without any: who sends again is not known yet.
TEST(BulkPace, TheLineIsSharedByThoseThatWillBeSentOn) {
  ScriptedPeer peer;
  peer.paths = {path_with("bbr", 2), path_with("bbr", 3)};
  BulkPace pace(peer.loop, peer, {2, 0});
  pace.use(std::vector<ConnectionId>{2, 3});
  pace.sending_begins();
  send_for(peer, 3 * kSecond);
  const auto shared = peer.paces.at(2);
  ASSERT_TRUE(shared);
  for (auto& path : peer.paths) path.tcp.unsent_bytes = 0;
  peer.run_for(100 * kMillisecond);
  EXPECT_EQ(peer.paces.at(2), shared);
  EXPECT_EQ(peer.paces.at(3), shared);
  pace.suffice(1);
  peer.run_for(50 * kMillisecond);
  EXPECT_EQ(*peer.paces.at(2), 2 * *shared);
}

// Both ends send, and a long queue is on the way back: the stamps tell.
TEST(Link, AQueueOnTheWayBackIsNotOursToDrain) {
  for (const bool control_waits_too : {true, false}) {
    ScriptedPeer peer;
    peer.paths = {path_with("bbr", 2), path_with("bbr", 3)};
    begin_on_two_connections(peer, 1000);
    peer.link.offer(5, 0, 1000, std::make_shared<NumberedChunks>(100), false);
    constexpr Nanoseconds kOffset = 1234 * kSecond;  // of the peer's clock
    std::deque<std::pair<Nanoseconds, Nanoseconds>> stamps;
    std::size_t looked = peer.sent.size(), many = 0;
    for (int i = 0; i < 1000; ++i) {
      peer.run_for(10 * kMillisecond);
      const auto now = peer.simulation.now();
      // What waits there: our stamps nothing, the peer's answers 200 ms of 300.
      for (; looked < peer.sent.size(); ++looked) {
        if (peer.sent[looked].message[0] != static_cast<std::byte>(Frame::ack)) continue;
        auto in = after_kind(peer.sent[looked].message);
        stamps.emplace_back(now, decode_ack(in)->stamp);
        many += i >= 500;
      }
      const auto back = (i >= 300 && control_waits_too ? 250 : 50) * kMillisecond;
      while (!stamps.empty() && stamps.front().first <= now - 50 * kMillisecond - back) {
        Ack ack;
        ack.session = peer.session;
        ack.credit = 1000;
        ack.stamp = now - back + kOffset;
        ack.echo = stamps.front().second;
        ack.held = 0;
        peer.control(ack.encode());
        stamps.pop_front();
      }
      for (auto& path : peer.paths) {
        path.tcp.round_trip_min = 100 * kMillisecond;
        path.tcp.round_trip = (i >= 300 ? 300 : 170) * kMillisecond;
        path.tcp.unsent_bytes = 1000;
        path.tcp.delivered_bytes += 50'000;
      }
    }
    EXPECT_GE(many, 24U) << "five a second";
    const auto pace = peer.paces[2] ? *peer.paces[2] : 1e12;
    if (control_waits_too)
      EXPECT_GE(pace, 4.9e6) << "of 5 MB/s each";
    else
      EXPECT_LE(pace, 4.9e6) << "control does not wait where bulk does, and tells nothing";
  }
}

// Their bursts would stay bursts; more than at first are there only because each has little to
// send.
TEST(Link, TheFirstConnectionsOfManySpreadWhatTheySend) {
  ScriptedPeer peer;
  begin_on_connections(peer, 200, 2 * BulkWidth::kManyAtFirst);
  EXPECT_TRUE(peer.paces.empty()) << "nothing is sent yet";
  peer.link.offer(5, 0, 100, std::make_shared<NumberedChunks>(100), false);
  EXPECT_EQ(peer.paces.size(), BulkWidth::kManyAtFirst);
  // It stays so when all has arrived.
  Ack ack;
  ack.session = peer.session;
  ack.credit = 400;
  for (std::uint32_t index = 0; index < 100; ++index) {
    ack.chunks = {{5, index}};
    peer.control(ack.encode());
  }
  ASSERT_FALSE(peer.link.sends(5));
  for (const auto& [connection, pace] : peer.paces) EXPECT_EQ(pace, kSpread) << connection;
  // 10 kB came in the last second: on so slow a line timers cost nothing.
  peer.run_for(kSecond);
  peer.link.offer(6, 0, 100, std::make_shared<NumberedChunks>(100), false);
  EXPECT_EQ(peer.paces.size(), 2 * BulkWidth::kManyAtFirst);
}

}  // namespace
}  // namespace isthmus::inter

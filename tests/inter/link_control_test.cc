// What a Link promises of messages on the control lane, over a simulated network, and against a
// peer that says what it likes.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "inter/link.h"
#include "tests/inter/bulk_session.h"
#include "tests/inter/link_pair.h"

namespace isthmus::inter {
namespace {

TEST_F(LinkPair, ControlArrivesInOrderOnceEachOverABadNetwork) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    start(bad(), {}, seed);
    constexpr std::size_t kMessages = 300;
    for (std::size_t i = 0; i < kMessages; ++i) {
      alpha->link->send(numbered(i));
      beta->link->send(numbered(i));
      world->run_for(10 * kMillisecond);
      if (i % 100 == 50) world->network.break_connections(kAlpha, kBeta);
    }
    ASSERT_TRUE(wait([&] { return alpha->link->drained() && beta->link->drained(); })) << seed;
    EXPECT_EQ(alpha->owner.sessions, 1) << "the session outlives its connections, seed " << seed;
    EXPECT_EQ(alpha->owner.numbers, first_numbers(kMessages)) << seed;
    EXPECT_EQ(beta->owner.numbers, first_numbers(kMessages)) << seed;
    EXPECT_GT(alpha->link->counters().retransmits, 0U);
    EXPECT_EQ(beta->log.count("duplicate_identity"), 0U);
  }
}

// Sequences of data frames, in the order in which they left on a connection; 0: none of them.
std::vector<std::uint64_t> sequences(const ScriptedPeer& peer, ConnectionId connection) {
  std::vector<std::uint64_t> all;
  for (const auto& sent : peer.sent) {
    if (sent.connection != connection || sent.message[0] != static_cast<std::byte>(Frame::data))
      continue;
    auto in = after_kind(sent.message);
    all.push_back(decode_data(in)->sequence);
  }
  return all;
}

using Sequences = std::vector<std::uint64_t>;

// Long messages on a thin line are on their way for much longer than a round trip.
TEST_F(LinkPair, WhatTakesItsTimeIsSentOnce) {
  auto faults = calm();
  faults.bytes_per_second = 16'000;
  start(faults);
  const auto before = alpha->wire->bytes_sent(kBeta);
  for (std::uint64_t i = 0; i < 10; ++i) alpha->link->send(numbered(i, i == 0 ? 48'000 : 5000));
  ASSERT_TRUE(wait([&] { return alpha->link->drained(); }));
  EXPECT_EQ(beta->owner.numbers, first_numbers(10));
  EXPECT_EQ(alpha->owner.sessions, 1);
  EXPECT_EQ(alpha->link->counters().retransmits, 0U);
  EXPECT_LT(alpha->wire->bytes_sent(kBeta) - before, 100'000U) << "of 93 kB";
}

TEST(Link, WhatAFullQueueRefusedGoesWhenThereIsRoom) {
  ScriptedPeer peer;
  peer.begin_session();
  peer.busy.insert(1);
  for (std::uint64_t i = 0; i < 50; ++i) peer.link.send(numbered(i));
  peer.busy.clear();
  EXPECT_EQ(sequences(peer, 1), Sequences());
  peer.link.wire_writable(Lane::control, 1);
  Sequences all(50);
  std::iota(all.begin(), all.end(), 1);
  EXPECT_EQ(sequences(peer, 1), all);
}

TEST(Link, WhatAnotherConnectionTookGoesAgainOnTheNewOne) {
  ScriptedPeer peer;
  peer.begin_session();
  for (std::uint64_t i = 0; i < 3; ++i) peer.link.send(numbered(i, 2000));
  peer.link.wire_up(Lane::control, 3);
  EXPECT_EQ(sequences(peer, 3), Sequences()) << "the one in use lives";
  peer.control(Bind{peer.session, 0}.encode(), 3);
  EXPECT_EQ(sequences(peer, 3), (Sequences{1, 2, 3}));
  peer.link.wire_up(Lane::control, 4);
  peer.link.wire_down(Lane::control, 3);
  EXPECT_EQ(sequences(peer, 4), (Sequences{1, 2, 3}));
  peer.link.wire_down(Lane::control, 1);
  peer.link.wire_down(Lane::control, 4);
  peer.link.wire_up(Lane::control, 5);
  EXPECT_EQ(sequences(peer, 5), (Sequences{1, 2, 3}));
  EXPECT_EQ(sequences(peer, 1), (Sequences{1, 2, 3}));
}

// The wire's contract allows loss. Only what was sent well before the stamp.
TEST(Link, WhatAnAnswerToALaterStampDoesNotAcknowledgeGoesAgain) {
  ScriptedPeer peer;
  peer.begin_session();
  for (std::uint64_t i = 0; i < 2; ++i) peer.link.send(numbered(i, 2000));
  const auto stamp = [&] {
    const auto said = peer.last(Frame::ack);
    auto in = after_kind(said);
    return decode_ack(in)->stamp;
  };
  peer.run_for(1900 * kMillisecond);
  peer.link.send(numbered(2));
  const auto before = stamp();
  peer.run_for(200 * kMillisecond);
  ASSERT_GT(stamp(), before);
  const auto sent = sequences(peer, 1);
  Ack ack;
  ack.session = peer.session;
  ack.acknowledged = 1;
  ack.echo = stamp();
  ack.held = 0;
  peer.control(ack.encode());
  auto expected = sent;
  expected.push_back(2);
  EXPECT_EQ(sequences(peer, 1), expected);
}

// A probe is answered at once (SmallWordsTest), and so small that many of them delay nothing.
TEST(Link, WhoDoesNotAcknowledgeIsAskedLessAndLessOften) {
  for (const std::size_t bytes : {100, 60'000}) {
    ScriptedPeer peer;
    peer.begin_session();
    peer.link.send(numbered(0, bytes));
    const auto sent = sequences(peer, 1).size();
    for (int i = 0; i < 60; ++i) {
      peer.run_for(kSecond);
      peer.control(Bind{peer.session, 0}.encode());
    }
    const auto probes = sequences(peer, 1).size() - sent;
    EXPECT_GE(probes, 8U);
    EXPECT_LE(probes, 14U) << "a minute";
    EXPECT_EQ(sequences(peer, 1).back(), bytes == 100 ? 1U : 0U);
    Ack ack;
    ack.session = peer.session;
    ack.acknowledged = 1;
    peer.control(ack.encode());
    EXPECT_TRUE(peer.link.drained());
    peer.link.send(numbered(1, bytes));
    peer.run_for(1100 * kMillisecond);
    EXPECT_EQ(sequences(peer, 1).size(), sent + probes + 2) << "and the next one soon again";
  }
}

// Else the peer drops it: its session has not begun.
TEST(Link, TheHelloThatBeginsThePeersSessionGoesBeforeAnyMessage) {
  ScriptedPeer peer;
  peer.owner.begin = [&] { peer.link.send(numbered(0)); };
  peer.begin_session();
  const auto of_kind = [&](Frame kind) {
    return std::ranges::find_if(peer.sent, [&](const auto& sent) {
      return sent.lane == Lane::control && sent.message[0] == static_cast<std::byte>(kind);
    });
  };
  ASSERT_EQ(peer.count(Frame::data, 1), 1U);
  EXPECT_EQ(peer.count(Frame::hello, 1), 2U);
  const std::vector<ScriptedPeer::Sent> before(peer.sent.begin(), of_kind(Frame::data));
  EXPECT_EQ(std::ranges::count_if(before,
                                  [](const auto& sent) {
                                    return sent.message[0] == static_cast<std::byte>(Frame::hello);
                                  }),
            2);
}

TEST(Link, AMessageTooLongForTheWireIsDroppedAndReported) {
  ScriptedPeer peer;
  peer.begin_session();
  const auto longest = kControlMessageBytesMax - kDataHeaderBytes;
  peer.link.send(Bytes(longest));
  EXPECT_EQ(peer.last(Frame::data).size(), kControlMessageBytesMax);
  peer.link.send(Bytes(longest + 1));
  EXPECT_EQ(peer.log.count("message_too_large"), 1U);
  EXPECT_EQ(peer.last(Frame::data).size(), kControlMessageBytesMax);
  EXPECT_TRUE(peer.link.up());
}

TEST(Link, WhatThePeerDoesNotAcknowledgeIsBoundedInBytes) {
  LinkOptions options;
  options.control_queue_bytes_max = 1 << 20;
  ScriptedPeer peer(options);
  peer.begin_session();
  for (int i = 0; i < 100; ++i) {
    peer.link.send(Bytes(60'000));
    EXPECT_LE(peer.link.memory_bytes(), options.control_queue_bytes_max);
  }
  peer.run_for(kMillisecond);
  EXPECT_FALSE(peer.link.up());
  EXPECT_EQ(peer.link.memory_bytes(), 0U);
  EXPECT_EQ(peer.log.count("session_ended", "does not acknowledge"), 1U);
}

// A full queue ends the session soon, but not of a link that is gone by then.
TEST(Link, NothingIsDoneForALinkThatIsGone) {
  LinkOptions options;
  options.control_queue_max = 8;
  LinkWorld world;
  auto& node = world.start({1, 0}, {{2, 0}}, {}, options);
  auto& peer = world.start({2, 0}, {{1, 0}});
  ASSERT_TRUE(world.run_until([&] { return node.link->up() && peer.link->up(); }, 10 * kSecond));
  for (int i = 0; i < 9; ++i) node.link->send(Bytes(100));
  ASSERT_TRUE(node.link->up());
  node.link.reset();
  node.wire.reset();
  node.loop.run_ready();
  EXPECT_EQ(node.log.count("session_ended"), 0U);
}

TEST(Link, WhatComesBeyondAGapIsBoundedInBytes) {
  LinkOptions options;
  options.beyond_gap_bytes_max = 1 << 20;
  ScriptedPeer peer(options);
  peer.begin_session();
  const Bytes body(60'000, std::byte{1});
  for (std::uint64_t sequence = 2; sequence < 200; ++sequence) {
    peer.control(Data{peer.session, sequence, 0, body}.encode());
    EXPECT_LE(peer.link.memory_bytes(), options.beyond_gap_bytes_max);
  }
  EXPECT_GT(peer.link.memory_bytes(), options.beyond_gap_bytes_max / 2);
  EXPECT_TRUE(peer.owner.numbers.empty());
  // The gap closes: what was kept arrives, what was dropped comes again.
  for (std::uint64_t sequence = 1; sequence < 200; ++sequence)
    peer.control(Data{peer.session, sequence, 0, body}.encode());
  EXPECT_EQ(peer.owner.numbers.size(), 199U);
  EXPECT_EQ(peer.link.memory_bytes(), 0U);
}

}  // namespace
}  // namespace isthmus::inter

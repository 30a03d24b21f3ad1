// What a Link promises of chunks, over a simulated network, and against a peer that says what it
// likes. Its messages: link_control_test.cc; its session: link_session_test.cc; its connections:
// link_connections_test.cc.
#include "inter/link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "tests/inter/bulk_session.h"
#include "tests/inter/link_pair.h"

namespace isthmus::inter {
namespace {

TEST_F(LinkPair, CreditBoundsWhatIsNotYetChecked) {
  LinkOptions options;
  options.window_chunks = 6;
  start(calm(), options);
  beta->owner.settle_at_once = false;
  alpha->link->offer(5, 0, 40, std::make_shared<NumberedChunks>(5000), false);
  world->run_for(30 * kSecond);
  // Those that the window and the start allow, and no more, however long it takes.
  EXPECT_GE(beta->owner.unsettled.size(), 4U);
  EXPECT_LE(beta->owner.unsettled.size(), 2 * options.window_chunks);
  EXPECT_TRUE(alpha->link->acknowledged_chunks().empty()) << "acknowledged before it was checked";
  EXPECT_TRUE(wait([&] {
    while (!beta->owner.unsettled.empty()) {
      beta->link->settle(beta->owner.unsettled.front(), true);
      beta->owner.unsettled.pop_front();
    }
    return alpha->link->acknowledged_chunks().size() == 40;
  }));
  const std::set<std::uint32_t> seen(beta->owner.chunks.begin(), beta->owner.chunks.end());
  EXPECT_EQ(seen.size(), 40U);
}

TEST(Link, ChunksWithoutAVerdictAreBoundedInBytes) {
  LinkOptions options;
  options.window_bytes = options.window_bytes_max = 1 << 20;
  ScriptedPeer peer(options);
  peer.link.expect_chunks(10'000);
  peer.begin_session();
  peer.owner.settle_at_once = false;
  const Bytes longer(400'000, std::byte{1});  // than a chunk is
  const auto send = [&](std::uint32_t i) {
    peer.bulk(Chunk{peer.session, i + 1, 7, i, longer}.encode());
  };
  for (std::uint32_t i = 0; i < 50; ++i) {
    send(i);
    EXPECT_LE(peer.link.memory_bytes(), 2 * options.window_bytes);
  }
  EXPECT_EQ(peer.owner.unsettled.size(), 5U);
  for (const auto& arrival : std::exchange(peer.owner.unsettled, {}))
    peer.link.settle(arrival, true);
  EXPECT_EQ(peer.link.memory_bytes(), 0U);
  send(50);
  EXPECT_EQ(peer.owner.unsettled.size(), 1U);
}

// A line on which so many bytes come in each second, and its credit.
class OnALine : public testing::Test {
 protected:
  static constexpr std::uint64_t kChunk = 1 << 18;

  void begin() {
    peer.link.expect_chunks(kChunk);
    peer.begin_session();
    peer.run_for(kSecond);  // it has asked for a sign of life
  }
  void bring(double bytes_per_second, Nanoseconds round_trip, int heartbeats = 8) {
    for (int i = 0; i < heartbeats * 2; ++i) {
      const auto theirs = peer.last(Frame::ack);
      auto in = after_kind(theirs);
      const auto asked = decode_ack(in).value_or(Ack{});
      peer.run_for(round_trip);
      Ack ack;
      ack.session = peer.session;
      ack.stamp = ack.echo = asked.stamp;
      ack.held = 0;
      if (asked.stamp > 0) peer.control(ack.encode());
      peer.received += static_cast<std::uint64_t>(bytes_per_second / 2);
      peer.run_for(kSecond / 2 - round_trip);
    }
  }
  // In chunks, as granted now.
  std::uint64_t window() {
    const auto ours = peer.last(Frame::ack);
    auto in = after_kind(ours);
    return decode_ack(in).value_or(Ack{}).credit;
  }

  ScriptedPeer peer;
};

TEST_F(OnALine, TheWindowGrowsWithWhatComesInARoundTrip) {
  begin();
  EXPECT_EQ(window(), (64U << 20) / kChunk);
  bring(125e6, 200 * kMillisecond);  // 1 Gbit/s
  EXPECT_EQ(window(), (64U << 20) / kChunk) << "25 MB in a round trip need no more";
  bring(250e6, 200 * kMillisecond);
  EXPECT_NEAR(static_cast<double>(window() * kChunk), 100e6, 2e6) << "twice 50 MB";
  EXPECT_EQ(peer.log.count("window_full"), 0U);
  EXPECT_LT(peer.link.status().window_used, kWindowFull);
  // Up to what may be, and then it is said.
  bring(1250e6, 200 * kMillisecond);  // 10 Gbit/s
  EXPECT_EQ(window(), (256U << 20) / kChunk);
  EXPECT_EQ(peer.log.count("window_full"), 1U) << "now and then";
  EXPECT_GE(peer.link.status().window_used, kWindowFull);
  EXPECT_NEAR(static_cast<double>(peer.link.status().window_bytes), 256 << 20, kChunk);
  // An idle line holds nobody up, and the window stays for the next exchange.
  bring(0, 200 * kMillisecond);
  EXPECT_EQ(window(), (256U << 20) / kChunk);
  EXPECT_LT(peer.link.status().window_used, kWindowFull);
}

TEST_F(OnALine, MemoryStaysWithinTheLargestWindowThatMayBe) {
  peer.owner.settle_at_once = false;
  begin();
  bring(1e12, 200 * kMillisecond);
  const Bytes chunk(kChunk);
  for (std::uint32_t i = 0; i < 2100; ++i)
    peer.bulk(Chunk{peer.session, i + 1, 7, i, chunk}.encode());
  EXPECT_LE(peer.link.memory_bytes(), 2 * LinkOptions().window_bytes_max);
  EXPECT_GT(peer.link.memory_bytes(), LinkOptions().window_bytes_max);
}

// Of which it says by turns that it has it and that it has not.
TEST(Link, AChunkThatWaitsWaitsOnce) {
  ScriptedPeer peer;
  begin_on_connections(peer, 4, 1);
  peer.link.offer(5, 0, 20, std::make_shared<NumberedChunks>(50), false);
  const auto sent = [&] {
    return std::ranges::count_if(peer.sent, [](const auto& s) {
      auto in = after_kind(s.message);
      return s.message[0] == static_cast<std::byte>(Frame::chunk) && decode_chunk(in)->index == 19;
    });
  };
  ASSERT_EQ(sent(), 0) << "it leaves before";
  for (std::uint64_t i = 1; i <= 100; ++i) {
    peer.control(Ack{.session = peer.session, .chunks = {{5, 19}}}.encode());
    peer.control(Data{peer.session, i, 0, Have{5, std::vector<bool>(20)}.encode()}.encode());
  }
  peer.control(granting(peer.session, 1000));
  peer.run_for(kMillisecond);
  EXPECT_EQ(sent(), 1);
}

// Each acknowledgement is a message to seal and to open: on a fast line one for each chunk costs
// more than a tenth of what the chunk does.
TEST(Link, ChunksThatComeInARowAreAcknowledgedTogether) {
  ScriptedPeer peer;
  peer.begin_session();
  peer.run_for(100 * kMillisecond);
  const auto acks = [&] { return peer.count(Frame::ack, 1); };
  const auto before = acks();
  const auto chunk = [&](std::uint64_t sequence) {
    return Chunk{peer.session, sequence, 7, static_cast<std::uint32_t>(sequence), {}}.encode();
  };
  peer.bulk(chunk(1));
  peer.run_for(0);
  EXPECT_EQ(acks(), before + 1) << "the first after a pause waits for none";
  for (std::uint64_t sequence = 2; sequence <= 21; ++sequence) {
    peer.bulk(chunk(sequence));
    peer.run_for(kMillisecond);
  }
  peer.run_for(5 * kMillisecond);
  EXPECT_EQ(peer.owner.chunks.size(), 21U);
  EXPECT_LE(acks(), before + 6);
  const auto last = peer.last(Frame::ack);
  auto in = after_kind(last);
  const auto ack = decode_ack(in);
  ASSERT_TRUE(ack);
  EXPECT_EQ(ack->chunks.back(), std::pair(TransferId{7}, std::uint32_t{21}));
}

// Also after the loop was held up: what is not acknowledged goes again.
TEST(Link, ChunksThatComeAllAtOnceAreEachAcknowledged) {
  constexpr std::uint32_t kChunks = 300;
  ScriptedPeer peer;
  peer.begin_session();
  peer.run_for(100 * kMillisecond);
  const auto before = peer.sent.size();
  for (std::uint32_t index = 0; index < kChunks; ++index)
    peer.bulk(Chunk{peer.session, index + 1, 7, index, {}}.encode());
  peer.run_for(20 * kMillisecond);
  std::set<std::uint32_t> acknowledged;
  std::size_t acks = 0;
  for (auto i = before; i < peer.sent.size(); ++i) {
    if (peer.sent[i].message[0] != static_cast<std::byte>(Frame::ack)) continue;
    auto in = after_kind(peer.sent[i].message);
    const auto ack = decode_ack(in);
    ASSERT_TRUE(ack);
    ++acks;
    for (const auto& [transfer, index] : ack->chunks) acknowledged.insert(index);
  }
  EXPECT_EQ(acknowledged.size(), kChunks);
  EXPECT_LE(acks, kChunks / kRecentAcksMax + 2) << "as many as one holds in each";
}

std::vector<std::pair<TransferId, std::uint32_t>> last_acknowledged(const ScriptedPeer& peer) {
  const auto last = peer.last(Frame::ack);
  auto in = after_kind(last);
  const auto ack = decode_ack(in);
  return ack ? ack->chunks : std::vector<std::pair<TransferId, std::uint32_t>>();
}

// The wire takes none, or the connection ends that took it.
TEST(Link, AcknowledgementsThatMayBeLostGoAgain) {
  ScriptedPeer peer;
  peer.begin_session();
  const auto chunk = [&](std::uint32_t index) {
    peer.bulk(Chunk{peer.session, index + 1, 7, index, {}}.encode());
    peer.run_for(10 * kMillisecond);
  };
  chunk(0);
  chunk(1);
  EXPECT_EQ(last_acknowledged(peer).size(), 1U);
  peer.busy.insert(1);
  chunk(2);
  peer.busy.clear();
  chunk(3);
  EXPECT_EQ(last_acknowledged(peer).size(), 4U);
  chunk(4);
  EXPECT_EQ(last_acknowledged(peer).size(), 1U);
  peer.link.wire_up(Lane::control, 3);
  peer.link.wire_down(Lane::control, 1);
  peer.control(Data{peer.session, 1, 0, numbered(1)}.encode(), 3);
  peer.run_for(10 * kMillisecond);
  EXPECT_EQ(last_acknowledged(peer).size(), 5U);
  chunk(5);
  EXPECT_EQ(last_acknowledged(peer).size(), 1U);
  peer.run_for(kSecond);
  EXPECT_EQ(last_acknowledged(peer).size(), 6U) << "on each heartbeat";
}

// As many as a window holds, while bulk flows on: none of them may go again.
TEST(Link, WhatNoConnectionTookIsAcknowledgedOnTheNextOne) {
  constexpr std::uint32_t kChunks = 200;
  ScriptedPeer peer(ScriptedPeer::Begin::later);
  peer.link.expect_chunks(256 << 10);
  peer.link.start();
  peer.begin_session();
  peer.link.wire_down(Lane::control, 1);
  peer.busy = {0, 1};  // there is none
  for (std::uint32_t index = 0; index < kChunks; ++index) {
    peer.bulk(Chunk{peer.session, index + 1, 7, index, {}}.encode());
    peer.run_for(10 * kMillisecond);
  }
  peer.busy.clear();
  peer.link.wire_up(Lane::control, 3);
  peer.run_for(10 * kMillisecond);
  std::vector<std::uint32_t> acknowledged;
  for (const auto& sent : peer.sent) {
    if (sent.connection != 3 || sent.message[0] != static_cast<std::byte>(Frame::ack)) continue;
    auto in = after_kind(sent.message);
    const auto ack = decode_ack(in);
    for (const auto& [transfer, index] : ack->chunks) acknowledged.push_back(index);
  }
  EXPECT_EQ(acknowledged.size(), kChunks);
  EXPECT_TRUE(std::ranges::is_sorted(acknowledged)) << "what is left out seems lost";
}

// A disk that is full acknowledges nothing, and what goes again finds no room either.
TEST(Link, WhatIsOvertakenStaysWhereThePeerIsStalled) {
  constexpr std::uint32_t kChunks = 100;
  ScriptedPeer peer;
  peer.begin_session();
  peer.bulk(Bind{peer.session, 0}.encode());
  Ack ack;
  ack.session = peer.session;
  ack.credit = 1000;
  peer.control(ack.encode());
  peer.link.offer(5, 0, kChunks, std::make_shared<NumberedChunks>(100), false);
  peer.run_for(10 * kMillisecond);
  ASSERT_EQ(peer.count(Frame::chunk, 2), kChunks);
  ack.chunks = {{5, kChunks - 1}};
  ack.stalled = true;
  peer.control(ack.encode());
  EXPECT_EQ(peer.link.bulk_counters().chunks_resent, 0U);
  ack.stalled = false;
  peer.control(ack.encode());
  EXPECT_GT(peer.link.bulk_counters().chunks_resent, 0U);
}

// Of whoever says again and again what is known, or sends chunks that cost little.
class SmallWordsTest : public testing::TestWithParam<Frame> {};

TEST_P(SmallWordsTest, DrawNoMoreThanTheyTake) {
  ScriptedPeer peer;
  peer.begin_session();
  const auto chunk = [&](std::uint32_t index) {
    return Chunk{peer.session, index + 1, 5, index, {}}.encode();
  };
  for (std::uint32_t index = 0; index < kRecentAcksMax; ++index) {
    peer.bulk(chunk(index));
    peer.run_for(kMillisecond);
  }
  peer.run_for(kSecond);
  const auto before = peer.sent.size();
  std::size_t said = 0, drawn = 0;
  for (int i = 0; i < 2000; ++i) {
    const bool data = GetParam() == Frame::data;
    const auto word = data ? Data{peer.session, 0, 0, {}}.encode() : chunk(kRecentAcksMax);
    said += word.size() + kFramingBytes;
    data ? peer.control(word) : peer.bulk(word);
    peer.run_for(5 * kMillisecond);
  }
  for (auto i = before; i < peer.sent.size(); ++i)
    drawn += peer.sent[i].message.size() + kFramingBytes;
  EXPECT_LT(drawn, 2 * said) << said << " bytes in ten seconds";
}

INSTANTIATE_TEST_SUITE_P(Of, SmallWordsTest, testing::Values(Frame::data, Frame::chunk),
                         [](const auto& test) {
                           return test.param == Frame::data ? "Data" : "Chunks";
                         });

TEST_F(LinkPair, WhatTheReceiverRefusesComesAgain) {
  start();
  beta->owner.settle_at_once = false;
  alpha->link->offer(5, 0, 1, std::make_shared<NumberedChunks>(100), false);
  ASSERT_TRUE(wait([&] { return beta->owner.unsettled.size() == 1; }));
  beta->link->settle(beta->owner.unsettled.front(), false);
  beta->owner.settle_at_once = true;
  EXPECT_TRUE(wait([&] { return alpha->link->acknowledged_chunks().size() == 1; }));
  EXPECT_EQ(beta->owner.chunks.size(), 2U);
}

TEST_F(LinkPair, ControlGoesAtOnceAndOlderTransfersBeforeNewerOnes) {
  start();
  alpha->limit_to(10'000);
  alpha->link->offer(8, 3, 40, std::make_shared<NumberedChunks>(10'000), false);
  world->run_for(kSecond + kSecond / 2);
  const auto newer = beta->owner.chunks.size();
  EXPECT_LE(newer, 2U);
  alpha->link->offer(7, 2, 5, std::make_shared<NumberedChunks>(10'000), false);
  alpha->link->send(numbered(1));
  world->run_for(kSecond / 2);
  EXPECT_EQ(beta->owner.numbers, (std::vector<std::uint64_t>{1}));
  ASSERT_TRUE(wait([&] { return beta->owner.chunks.size() >= newer + 6; }));
  // One was on its way.
  const std::vector<std::uint32_t> next(beta->owner.chunks.begin() + newer + 1,
                                        beta->owner.chunks.begin() + newer + 6);
  EXPECT_EQ(next, (std::vector<std::uint32_t>{0, 1, 2, 3, 4}));
}

TEST_F(LinkPair, AnotherRateLimitCountsForWhatWaitsAlready) {
  LinkOptions options;
  options.bulk_connections_max = 1;  // no copies
  start(calm(), options);
  alpha->limit_to(100);
  alpha->link->offer(5, 0, 4, std::make_shared<NumberedChunks>(100'000), false);
  world->run_for(5 * kSecond);
  EXPECT_EQ(alpha->link->status().waiting_for, "rate limit");
  EXPECT_TRUE(beta->owner.chunks.empty());
  alpha->limit_to(100'000);
  world->run_for(2 * kSecond);
  EXPECT_GE(beta->owner.chunks.size(), 1U);
  EXPECT_LE(beta->owner.chunks.size(), 2U);
  alpha->limit_to(0);
  world->run_for(kSecond / 2);
  EXPECT_EQ(beta->owner.chunks.size(), 4U);
}

// Its turn has come, and the connections are full: of another limit it has had nothing.
TEST(Link, WhatHadItsTurnBeforeAnotherRateLimitGivesThatNothingBack) {
  ScriptedPeer peer;
  begin_on_two_connections(peer, 20);
  peer.limit.set_rate(peer.loop.now(), 200'000);
  peer.busy = {2, 3};
  peer.link.offer(5, 0, 1, std::make_shared<NumberedChunks>(100'000), false);
  peer.run_for(kSecond);
  const auto changed = peer.loop.now();
  peer.limit.set_rate(changed, 100'000);
  peer.link.rate_changed();
  peer.link.withdraw(5);
  EXPECT_FALSE(peer.limit.idle(changed - 1));
}

// Of four or eight connections, on a line that carries far more.
class RateLimitOverConnections : public LinkPair,
                                 public testing::WithParamInterface<sim::SimulatedTcp> {
 protected:
  RateLimitOverConnections() {
    auto faults = calm(GetParam());
    faults.bytes_per_second = 2.5e6;
    LinkOptions options;
    options.bulk_connections_max = 8;
    start(faults, options);
    alpha->link->offer(5, 0, 4000, std::make_shared<NumberedChunks>(100'000), false);
  }
  double most_in_a_second(int seconds) {
    double most = 0;
    for (int i = 0; i < seconds; ++i) {
      const auto before = beta->wire->bytes_received_on(kAlpha, Lane::bulk);
      world->run_for(kSecond);
      most = std::max(
          most, static_cast<double>(beta->wire->bytes_received_on(kAlpha, Lane::bulk) - before));
    }
    return most;
  }
};

TEST_P(RateLimitOverConnections, AlsoWhenItIsLoweredOrLifted) {
  constexpr double kLimit = 100e3, kPiece = 1 << 14;
  EXPECT_GT(most_in_a_second(20), 1.5e6);
  alpha->limit_to(kLimit);
  world->run_for(5 * kSecond);  // what the kernel had
  EXPECT_LE(most_in_a_second(30), kLimit + 2 * kPiece);
  alpha->limit_to(0);
  world->run_for(2 * kSecond);
  EXPECT_GT(most_in_a_second(2), 1e6) << "nothing has learnt that the line carries no more";
}

TEST_P(RateLimitOverConnections, AlsoAfterAnOutage) {
  alpha->limit_to(500'000);
  EXPECT_GT(most_in_a_second(20), 450e3);
  for (const bool cut : {true, false}) {
    world->network.cut(kAlpha, kBeta, cut);
    world->network.cut(kBeta, kAlpha, cut);
    if (cut) world->run_for(4 * kSecond);
  }
  EXPECT_LE(most_in_a_second(20), 800e3) << "what the kernel had is sent again beside it";
}

INSTANTIATE_TEST_SUITE_P(Tcp, RateLimitOverConnections,
                         testing::Values(sim::SimulatedTcp::reno, sim::SimulatedTcp::bbr));

// What the report calls "while sending": a small transfer counts as long as it takes, with what it
// waits for, and never seems faster than the cap.
TEST_F(LinkPair, CountsTheTimeItSends) {
  start();
  alpha->limit_to(100'000);
  EXPECT_EQ(alpha->link->status().sending_s, 0);
  alpha->link->offer(5, 0, 2, std::make_shared<NumberedChunks>(50'000), false);
  ASSERT_TRUE(wait([&] { return alpha->link->acknowledged_chunks().size() == 2; }));
  world->run_for(30 * kSecond);
  const auto status = alpha->link->status();
  EXPECT_GE(status.sending_s, static_cast<double>(status.zstd_bytes) / 100'000);
  EXPECT_LT(status.sending_s, 1.5);
  EXPECT_EQ(status.waiting_for, "");
  EXPECT_EQ(beta->link->status().sending_s, 0);
}

// Nothing came yet: four round trips. Then twice what the longest chunk takes at the line's rate.
TEST_F(LinkPair, PatienceWithChunksFollowsFromTheRate) {
  auto slow = calm(sim::SimulatedTcp::reno);
  slow.bytes_per_second = 100'000;
  slow.queue_bytes = 20'000;
  LinkOptions options;
  options.bulk_connections_max = 1;
  start(slow, options);
  world->run_for(5 * kSecond);
  EXPECT_LT(beta->link->chunk_patience(), kSecond);
  for (auto* end : {alpha, beta}) end->link->expect_chunks(250'000);
  alpha->link->offer(5, 0, 50, std::make_shared<NumberedChunks>(100'000), false);
  world->run_for(20 * kSecond);
  const auto busy = beta->link->chunk_patience();
  EXPECT_GT(busy, 4 * kSecond);
  EXPECT_LT(busy, 9 * kSecond);
  ASSERT_TRUE(wait([&] { return !alpha->link->sends(5); }));
  world->run_for(30 * kSecond);
  EXPECT_LT(beta->link->chunk_patience(), busy / 4);
}

// What control says is no rate of chunks, of which none come.
TEST_F(LinkPair, PatienceWithChunksDoesNotFollowFromControl) {
  start();
  for (auto* end : {alpha, beta}) end->link->expect_chunks(1 << 20);
  for (std::uint64_t i = 0; i < 200; ++i) {
    alpha->link->send(numbered(i, 1000));
    world->run_for(100 * kMillisecond);
  }
  EXPECT_LT(beta->link->chunk_patience(), kSecond);
}

TEST_F(LinkPair, TransfersFinishOverABadNetwork) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    start(bad(), {}, seed);
    for (const TransferId transfer : {5, 6})
      alpha->link->offer(transfer, transfer, 40, std::make_shared<NumberedChunks>(100'000), false);
    for (int i = 0; i < 3; ++i) {
      world->run_for(700 * kMillisecond);
      world->network.break_connections(kAlpha, kBeta);
    }
    EXPECT_TRUE(wait([&] { return alpha->link->acknowledged_chunks().size() == 80; })) << seed;
  }
}

}  // namespace
}  // namespace isthmus::inter

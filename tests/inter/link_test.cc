// What a Link promises, over a simulated network, and against a peer that says what it likes.
#include "inter/link.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "tests/inter/link_world.h"
#include "tests/inter/zmq_world.h"

namespace isthmus::inter {
namespace {

constexpr GatewayId kAlpha{1, 0}, kTwin{1, 1}, kBeta{2, 0};

sim::NetworkFaults calm() {
  sim::NetworkFaults faults;
  faults.silent_deaths = 0;
  faults.late_downs = 0;
  return faults;
}

sim::NetworkFaults bad() {
  auto faults = calm();
  faults.loss = 0.1;
  faults.duplicate = 0.1;
  faults.reorder = 0.3;
  faults.late_downs = 0.5;
  return faults;
}

Introduction with_codec(const std::string& codec) {
  return {.boot = 1, .run = {}, .fingerprint = {{{"codec", codec}}}};
}

std::vector<std::uint64_t> first_numbers(std::size_t count) {
  std::vector<std::uint64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

Bytes granting(std::uint64_t session, std::uint64_t credit) {
  Ack ack;
  ack.session = session;
  ack.credit = credit;
  return ack.encode();
}

class LinkPair : public testing::Test {
 protected:
  void start(sim::NetworkFaults faults = calm(), LinkOptions options = {}, std::uint64_t seed = 1) {
    world = std::make_unique<LinkWorld>(faults, seed);
    alpha = &world->start(kAlpha, {kBeta}, {}, options);
    beta = &world->start(kBeta, {kAlpha, kTwin}, {}, options);
    ASSERT_TRUE(wait([&] { return alpha->link->up() && beta->link->up(); }));
    EXPECT_EQ(alpha->link->session(), beta->link->session());
  }
  bool wait(const std::function<bool()>& condition, Nanoseconds at_most = 120 * kSecond) {
    return world->run_until(condition, at_most);
  }
  // Each end's chunks reach the other, whatever stood before.
  void expect_working(std::size_t messages = 20) {
    for (auto [from, to] : {std::pair(alpha, beta), std::pair(beta, alpha)}) {
      to->owner.numbers.clear();
      to->owner.chunks.clear();
      for (std::uint64_t i = 0; i < messages; ++i) from->link->send(numbered(i));
      from->link->withdraw(last_transfer++);
      from->link->offer(last_transfer, 0, 10, std::make_shared<NumberedChunks>(1000), false);
      ASSERT_TRUE(wait([&] { return from->link->drained() && to->owner.chunks.size() >= 10; }))
          << to->owner.numbers.size() << " messages, " << to->owner.chunks.size()
          << " chunks; waits for " << from->link->status().waiting_for;
      EXPECT_EQ(to->owner.numbers, first_numbers(messages));
    }
  }

  std::unique_ptr<LinkWorld> world;
  LinkWorld::Node* alpha = nullptr;
  LinkWorld::Node* beta = nullptr;
  TransferId last_transfer = 100;  // the last one of expect_working
};

// --- Control lane

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

TEST_F(LinkPair, SilenceEndsTheSessionAndAnotherBegins) {
  start();
  world->network.cut(kAlpha, kBeta, true);  // one way
  EXPECT_TRUE(wait([&] { return !beta->link->up(); }));
  EXPECT_EQ(beta->log.count("session_ended", "silence"), 1U);
  EXPECT_TRUE(wait([&] { return !alpha->link->up(); }));
  world->network.cut(kAlpha, kBeta, false);
  ASSERT_TRUE(wait([&] { return alpha->link->up() && beta->link->up(); }));
  EXPECT_EQ(alpha->owner.sessions, 2);
  expect_working();
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

TEST(Link, WhatComesBeyondAGapIsBoundedInBytes) {
  LinkOptions options;
  options.early_bytes_max = 1 << 20;
  ScriptedPeer peer(options);
  peer.begin_session();
  const Bytes body(60'000, std::byte{1});
  for (std::uint64_t sequence = 2; sequence < 200; ++sequence) {
    peer.control(Data{peer.session, sequence, 0, body}.encode());
    EXPECT_LE(peer.link.memory_bytes(), options.early_bytes_max);
  }
  EXPECT_GT(peer.link.memory_bytes(), options.early_bytes_max / 2);
  EXPECT_TRUE(peer.owner.numbers.empty());
  // The gap closes: what was kept arrives, what was dropped comes again.
  for (std::uint64_t sequence = 1; sequence < 200; ++sequence)
    peer.control(Data{peer.session, sequence, 0, body}.encode());
  EXPECT_EQ(peer.owner.numbers.size(), 199U);
  EXPECT_EQ(peer.link.memory_bytes(), 0U);
}

// --- Bulk lane

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
  alpha->limit.set_rate(alpha->loop.now(), 10'000);
  alpha->link->offer(8, 3, 40, std::make_shared<NumberedChunks>(10'000), false);
  world->run_for(kSecond + kSecond / 2);
  const auto newer = beta->owner.chunks.size();
  EXPECT_LE(newer, 2U);
  alpha->link->offer(7, 2, 5, std::make_shared<NumberedChunks>(10'000), false);
  alpha->link->send(numbered(1));
  world->run_for(kSecond / 2);
  EXPECT_EQ(beta->owner.numbers, (std::vector<std::uint64_t>{1}));
  ASSERT_TRUE(wait([&] { return beta->owner.chunks.size() >= newer + 6; }));
  // One had its turn already.
  const std::vector<std::uint32_t> next(beta->owner.chunks.begin() + newer + 1,
                                        beta->owner.chunks.begin() + newer + 6);
  EXPECT_EQ(next, (std::vector<std::uint32_t>{0, 1, 2, 3, 4}));
}

TEST_F(LinkPair, AnotherRateLimitCountsForWhatWaitsAlready) {
  start();
  alpha->limit.set_rate(alpha->loop.now(), 100);
  alpha->link->offer(5, 0, 4, std::make_shared<NumberedChunks>(100'000), false);
  world->run_for(5 * kSecond);
  EXPECT_EQ(alpha->link->status().waiting_for, "rate limit");
  EXPECT_TRUE(beta->owner.chunks.empty());
  alpha->limit.set_rate(alpha->loop.now(), 100'000);
  alpha->link->rate_changed();
  world->run_for(2 * kSecond);
  EXPECT_GE(beta->owner.chunks.size(), 1U);
  EXPECT_LE(beta->owner.chunks.size(), 2U);
  alpha->limit.set_rate(alpha->loop.now(), 0);
  alpha->link->rate_changed();
  world->run_for(kSecond / 2);
  EXPECT_EQ(beta->owner.chunks.size(), 4U);
}

TEST_F(LinkPair, AfterAReconnectOnlyTheGapsAreFilled) {
  start();
  constexpr std::uint32_t kChunks = 60;
  alpha->link->offer(5, 0, kChunks, std::make_shared<NumberedChunks>(200'000), false);
  ASSERT_TRUE(wait([&] { return beta->owner.chunks.size() >= 20; }));
  world->network.cut(kAlpha, kBeta, true);
  world->network.cut(kBeta, kAlpha, true);
  ASSERT_TRUE(wait([&] { return !alpha->link->up() && !beta->link->up(); }));
  EXPECT_FALSE(alpha->link->offers(5)) << "offers end with their session";
  world->network.cut(kAlpha, kBeta, false);
  world->network.cut(kBeta, kAlpha, false);
  ASSERT_TRUE(wait([&] { return alpha->link->up() && beta->link->up(); }));

  const std::set<std::uint32_t> before(beta->owner.chunks.begin(), beta->owner.chunks.end());
  ASSERT_LT(before.size(), kChunks);
  beta->owner.chunks.clear();
  alpha->link->offer(5, 0, kChunks, std::make_shared<NumberedChunks>(200'000), true);
  world->run_for(3 * kSecond);
  EXPECT_TRUE(beta->owner.chunks.empty()) << "chunks before the peer said what it has";
  std::vector<bool> have(kChunks);
  for (const auto index : before) have[index] = true;
  beta->link->have(5, have);
  ASSERT_TRUE(wait([&] { return alpha->link->acknowledged_chunks().size() == kChunks; }));
  const std::set<std::uint32_t> after(beta->owner.chunks.begin(), beta->owner.chunks.end());
  EXPECT_EQ(before.size() + after.size(), kChunks);
  for (const auto index : before) EXPECT_EQ(after.count(index), 0U) << "sent twice";
  EXPECT_EQ(alpha->link->bulk_counters().resumes, 1U);
}

TEST_F(LinkPair, ACutConnectionResendsAtMostTheCreditWindow) {
  constexpr std::uint32_t kChunks = 60;
  constexpr int kCuts = 3;
  std::uint64_t resent = 0;
  LinkOptions options;
  options.window_chunks = 8;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    start(calm(), options, seed);
    Random draws(seed);
    alpha->link->offer(5, 0, kChunks, std::make_shared<NumberedChunks>(200'000), false);
    for (int cut = 0; cut < kCuts; ++cut) {
      world->run_for(static_cast<Nanoseconds>(3e8 * draws.uniform()));
      world->network.break_connections(kAlpha, kBeta);
    }
    ASSERT_TRUE(wait([&] { return alpha->link->acknowledged_chunks().size() == kChunks; })) << seed;
    EXPECT_LE(alpha->link->bulk_counters().chunks_resent, kCuts * options.window_chunks) << seed;
    resent += alpha->link->bulk_counters().chunks_resent;
  }
  EXPECT_GT(resent, 30U) << "the cuts came in the middle";
}

TEST_F(LinkPair, AnOutageIsNoticedSoonAndOverSoon) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Random draws(seed);
    auto faults = calm();
    faults.delay = static_cast<Nanoseconds>(1e6 + 99e6 * draws.uniform());
    start(faults, {}, seed);
    alpha->link->offer(5, 0, 1000, std::make_shared<NumberedChunks>(200'000), false);
    world->run_for(kSecond + static_cast<Nanoseconds>(1e9 * draws.uniform()));
    const bool one_way = draws.chance(0.5);
    const auto began = world->simulation.now();
    const auto set_cut = [&](bool cut) {
      world->network.cut(kAlpha, kBeta, cut);
      if (!one_way) world->network.cut(kBeta, kAlpha, cut);
    };
    set_cut(true);
    // Who hears nothing any more; the other one, when a line is silent one way, is told by TCP.
    ASSERT_TRUE(wait([&] { return !beta->link->up(); }));
    EXPECT_LE(world->simulation.now() - began, 8 * kSecond) << seed;
    world->run_for(began + 20 * kSecond - world->simulation.now());
    set_cut(false);
    EXPECT_TRUE(wait([&] { return alpha->link->up() && beta->link->up(); }, 1500 * kMillisecond))
        << seed;
  }
}

// What the report calls "while sending": a small transfer counts as long as it takes, with what it
// waits for, and never seems faster than the cap.
TEST_F(LinkPair, CountsTheTimeItSends) {
  start();
  alpha->limit = RateLimit(100'000);
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

// --- Connections

// A peer that redials: its next connection is up before the old one's end is noticed.
TEST(Link, ALateDownOfTheOldConnectionDoesNotStopTheBulkLane) {
  ScriptedPeer peer;
  peer.begin_session();
  peer.link.wire_up(Lane::bulk, 3);
  peer.bulk(Bind{peer.session, 0}.encode(), 3);
  peer.link.wire_down(Lane::bulk, 2);
  peer.control(granting(peer.session, 100));
  peer.link.offer(5, 0, 2, std::make_shared<NumberedChunks>(100), false);
  EXPECT_EQ(peer.count(Frame::chunk, 3), 2U);
  EXPECT_EQ(peer.link.status().waiting_for, "acknowledgement");
  // Nor does the newest one's end, while an older one lives.
  peer.link.wire_up(Lane::bulk, 4);
  peer.bulk(Bind{peer.session, 0}.encode(), 4);
  peer.link.wire_down(Lane::bulk, 4);
  EXPECT_EQ(peer.count(Frame::chunk, 3), 4U) << "what was on its way goes again";
  peer.link.wire_down(Lane::bulk, 3);
  EXPECT_EQ(peer.link.status().waiting_for, "bulk connection");
}

// Where one connection does not suffice there are several, and each is on its own.
TEST(Link, ChunksLeaveOnAllConnectionsOfTheSession) {
  ScriptedPeer peer;
  peer.begin_session();
  peer.link.wire_up(Lane::bulk, 3);
  peer.link.wire_up(Lane::bulk, 4);
  peer.bulk(Bind{peer.session, 0}.encode(), 2);
  peer.bulk(Bind{peer.session, 1}.encode(), 3);
  peer.control(granting(peer.session, 100));
  // Nobody has said yet that 4 is the session's.
  peer.link.offer(5, 0, 6, std::make_shared<NumberedChunks>(100), false);
  EXPECT_EQ(peer.count(Frame::chunk, 2), 3U);
  EXPECT_EQ(peer.count(Frame::chunk, 3), 3U);
  EXPECT_EQ(peer.count(Frame::chunk, 4), 0U);
  // A full one is passed over.
  peer.bulk(Bind{peer.session, 2}.encode(), 4);
  peer.busy = {2, 4};
  peer.link.offer(6, 0, 4, std::make_shared<NumberedChunks>(100), false);
  EXPECT_EQ(peer.count(Frame::chunk, 3), 7U);
  peer.busy = {2, 3, 4};
  peer.link.offer(7, 0, 1, std::make_shared<NumberedChunks>(100), false);
  EXPECT_EQ(peer.link.status().waiting_for, "wire");
  peer.busy = {2, 3};
  peer.link.wire_writable(Lane::bulk, 4);
  EXPECT_EQ(peer.count(Frame::chunk, 4), 1U);
  // What was on the way on one that ends goes again, and nothing else.
  peer.busy.clear();
  peer.link.wire_writable(Lane::bulk, 2);
  peer.link.wire_down(Lane::bulk, 3);
  EXPECT_EQ(peer.link.bulk_counters().chunks_resent, 7U);
  EXPECT_EQ(peer.count(Frame::chunk, 2) + peer.count(Frame::chunk, 4), 3U + 1U + 7U);
}

// It was dialed because the old one is gone at the other end.
TEST(Link, AConnectionInAnothersPlaceReplacesIt) {
  ScriptedPeer peer;
  peer.begin_session();
  peer.bulk(Bind{peer.session, 0}.encode(), 2);
  peer.control(granting(peer.session, 100));
  peer.link.offer(5, 0, 2, std::make_shared<NumberedChunks>(100), false);
  EXPECT_EQ(peer.count(Frame::chunk, 2), 2U);
  peer.link.wire_up(Lane::bulk, 3);
  peer.bulk(Bind{peer.session, 0}.encode(), 3);
  EXPECT_EQ(peer.count(Frame::chunk, 3), 2U) << "what was on its way goes again";
  // What is late on the old one does not lead back.
  peer.bulk(Bind{peer.session, 0}.encode(), 2);
  peer.link.offer(6, 0, 2, std::make_shared<NumberedChunks>(100), false);
  EXPECT_EQ(peer.count(Frame::chunk, 2), 2U);
  EXPECT_EQ(peer.count(Frame::chunk, 3), 4U);
}

TEST(Link, AChunkIsLostWhenItsOwnConnectionHasOvertakenIt) {
  ScriptedPeer peer;
  peer.begin_session();
  peer.link.wire_up(Lane::bulk, 3);
  peer.bulk(Bind{peer.session, 0}.encode(), 2);
  peer.bulk(Bind{peer.session, 1}.encode(), 3);
  peer.control(granting(peer.session, 200));
  peer.link.offer(5, 0, 100, std::make_shared<NumberedChunks>(100), false);
  EXPECT_EQ(peer.count(Frame::chunk, 2), 50U);
  // Everything on one connection arrives, in its order; the other one is slow, no more.
  Ack ack;
  ack.session = peer.session;
  ack.credit = 200;
  std::vector<std::uint32_t> on_other;
  for (const auto& sent : peer.sent) {
    if (sent.message.empty() || sent.message[0] != static_cast<std::byte>(Frame::chunk)) continue;
    auto in = after_kind(sent.message);
    const auto index = decode_chunk(in)->index;
    if (sent.connection == 3) on_other.push_back(index);
    if (sent.connection == 2) ack.chunks.emplace_back(5, index);
  }
  peer.control(ack.encode());
  EXPECT_EQ(peer.link.bulk_counters().chunks_resent, 0U);
  ack.chunks = {{5, on_other[40]}};
  peer.control(ack.encode());
  EXPECT_EQ(peer.link.bulk_counters().chunks_resent, 8U) << "more than 32 places behind";
}

// A chunk that the peer dropped goes again, also when nothing overtakes it; one that TCP still
// carries does not, however long that takes.
TEST(Link, ChunksAreOverdueOnceTcpBringsNothingMore) {
  ScriptedPeer peer;
  peer.paths = {BulkPath()};
  peer.begin_session();
  peer.bulk(Bind{peer.session, 0}.encode(), 2);
  const auto hold_up = [&](int seconds, std::uint64_t bytes_per_second) {
    for (int i = 0; i < seconds; ++i) {
      peer.control(granting(peer.session, 100));  // it lives
      peer.paths[0].tcp.acknowledged_bytes += bytes_per_second;
      peer.run_for(kSecond);
    }
  };
  peer.link.offer(5, 0, 2, std::make_shared<NumberedChunks>(100'000), false);
  hold_up(30, 5'000);
  EXPECT_EQ(peer.link.bulk_counters().chunks_resent, 0U) << "slow is not lost";
  hold_up(10, 50);
  EXPECT_GE(peer.link.bulk_counters().chunks_resent, 2U) << "heartbeats are no chunks";
}

TEST(Link, AsManyConnectionsAsTheCongestionControlNeeds) {
  ScriptedPeer peer;
  BulkPath path;
  path.tcp.congestion_control = "cubic";
  peer.paths = {path};
  peer.begin_session();
  EXPECT_EQ(peer.width, 4U);
  peer.paths[0].tcp.congestion_control = "bbr";
  peer.run_for(2 * kSecond);
  EXPECT_EQ(peer.width, 1U);
  // The other direction may need more than ours.
  Ack ack;
  ack.session = peer.session;
  ack.width = 9;
  peer.control(ack.encode());
  peer.run_for(2 * kSecond);
  EXPECT_EQ(peer.width, 9U);
  ack.width = 60'000;
  peer.control(ack.encode());
  peer.run_for(2 * kSecond);
  EXPECT_EQ(peer.width, LinkOptions().bulk_connections_max);
}

TEST(Link, TheSessionKeepsToItsOwnConnections) {
  ScriptedPeer peer;
  peer.begin_session();
  peer.bulk(Bind{peer.session, 0}.encode(), 2);
  // Somebody else with this identity: the newest connections are not the session's.
  peer.link.wire_up(Lane::control, 10);
  peer.link.wire_up(Lane::bulk, 11);
  peer.link.send(numbered(1));
  peer.link.offer(5, 0, 2, std::make_shared<NumberedChunks>(100), false);
  peer.run_for(3 * kSecond);
  EXPECT_GE(peer.count(Frame::data, 1), 1U);
  EXPECT_GE(peer.count(Frame::ack, 1), 2U);
  EXPECT_EQ(peer.count(Frame::chunk, 2), 2U);
  for (const auto connection : {0, 10, 11}) {
    EXPECT_EQ(peer.count(Frame::data, connection), 0U) << connection;
    EXPECT_EQ(peer.count(Frame::ack, connection), 0U) << connection;
    EXPECT_EQ(peer.count(Frame::chunk, connection), 0U) << connection;
  }
  // The session's number moves it; what is late on the old connection does not move it back.
  peer.control(Bind{peer.session, 0}.encode(), 10);
  peer.control(Bind{peer.session, 0}.encode(), 1);
  peer.link.send(numbered(2));
  EXPECT_EQ(peer.count(Frame::data, 10), 1U);
  // A number that is wrong does not.
  peer.link.wire_up(Lane::control, 12);
  peer.control(Bind{peer.session + 1, 0}.encode(), 12);
  peer.link.send(numbered(3));
  EXPECT_EQ(peer.count(Frame::data, 10), 2U);
}

TEST_F(LinkPair, RedialsWithLateNewsOfThem) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    auto faults = calm();
    faults.late_downs = 1;
    start(faults, {}, seed);
    for (int i = 0; i < 4; ++i) {
      world->network.break_connections(kAlpha, kBeta);
      world->run_for(static_cast<Nanoseconds>(seed * 100 % 1300) * kMillisecond);
      expect_working();
    }
    // Everything that was ever up is down by now, but the newest.
    world->run_for(10 * kSecond);
    expect_working();
    EXPECT_EQ(alpha->owner.sessions, 1) << seed;
  }
}

TEST_F(LinkPair, WithoutAConnectionNobodySaysHello) {
  ScriptedPeer peer;
  peer.run_for(10 * kSecond);
  EXPECT_TRUE(peer.sent.empty());
  peer.link.wire_up(Lane::control, 1);
  peer.run_for(10 * kSecond);
  const auto said = peer.sent.size();
  EXPECT_GE(said, 9U);
  peer.link.wire_down(Lane::control, 1);
  peer.run_for(10 * kSecond);
  EXPECT_EQ(peer.sent.size(), said);
}

// --- Who is who

TEST_F(LinkPair, ARefusalNamesTheFieldAtBothEnds) {
  world = std::make_unique<LinkWorld>(calm());
  alpha = &world->start(kAlpha, {kBeta}, with_codec("int8"));
  beta = &world->start(kBeta, {kAlpha}, with_codec("bf16"));
  world->run_for(20 * kSecond);
  for (const auto* node : {alpha, beta}) {
    EXPECT_FALSE(node->link->up());
    EXPECT_GT(node->log.count("session_refused", "codec: ") +
                  node->log.count("session_refused_by_peer", "codec: "),
              0U);
    EXPECT_EQ(node->link->status().state.rfind("refused: codec: ", 0), 0U)
        << node->link->status().state;
  }
  // Somebody mends it: no restart is needed.
  beta->owner.introduction = with_codec("int8");
  EXPECT_TRUE(wait([&] { return alpha->link->up() && beta->link->up(); }, 30 * kSecond));
}

TEST(Link, AnotherProtocolVersionIsRefusedByName) {
  ScriptedPeer peer;
  peer.link.wire_up(Lane::control, 1);
  auto hello = Hello{.nonce = 5, .introduction = peer.owner.introduction}.encode();
  hello[9] = std::byte{9};  // the version, after frame and magic
  peer.control(hello);
  const auto refusal = peer.last(Frame::refuse);
  auto in = after_kind(refusal);
  EXPECT_EQ(decode_refuse(in).value_or(Refuse{}).why, "protocol version: 4 here, 9 there");
}

TEST_F(LinkPair, ASecondLiveProcessIsRefusedAndReported) {
  for (const double loss : {0.0, 0.05}) {
    auto faults = calm();
    faults.loss = loss;
    start(faults);
    const auto session = beta->link->session();
    auto& twin = world->start(kTwin, {kBeta});
    ASSERT_TRUE(wait([&] { return beta->log.count("duplicate_identity") > 0; }, 15 * kSecond));
    ASSERT_TRUE(wait([&] { return twin.log.count("session_refused_by_peer") > 0; }));

    EXPECT_NE(twin.link->status().state.find("another live process"), std::string::npos);
    // The one that was there first does not notice, for as long as the other one stays.
    for (int i = 0; i < 10; ++i) {
      world->run_for(10 * kSecond);
      expect_working();
    }
    EXPECT_EQ(beta->link->session(), session);
    EXPECT_EQ(alpha->link->session(), session);
    EXPECT_FALSE(twin.link->up());
    EXPECT_TRUE(twin.owner.numbers.empty());
    EXPECT_TRUE(twin.owner.chunks.empty());
    // Also when its connections are made anew, and are the older ones again after the next try.
    world->network.break_connections(kAlpha, kBeta);
    world->run_for(5 * kSecond);
    world->network.break_connections(kTwin, kBeta);
    world->run_for(5 * kSecond);
    expect_working();
    EXPECT_EQ(beta->link->session(), session);
    // When the first one ends, the second may begin.
    world->kill(*alpha);
    alpha = &twin;
    ASSERT_TRUE(wait([&] { return twin.link->up() && beta->link->up(); }));
    expect_working();
  }
}

TEST_F(LinkPair, ARestartTakesOverFromAConnectionThatNobodyMissed) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    auto faults = calm();
    faults.silent_deaths = 1;
    start(faults, {}, seed);
    world->kill(*alpha);
    alpha = &world->start(kAlpha, {kBeta});
    const auto began = world->simulation.now();
    ASSERT_TRUE(wait([&] { return alpha->link->up() && beta->link->up(); })) << seed;
    EXPECT_LT(world->simulation.now() - began, 5 * kSecond) << seed;
    EXPECT_EQ(beta->log.count("duplicate_identity"), 0U) << seed;
    expect_working();
  }
}

// A link over real sockets.
struct Process final : WireReceiver {
  explicit Process(const Clock& clock, std::string name) : loop(clock), log(clock, name) {}
  void start(ZmqWorld& at, std::size_t gateway, std::uint64_t seed) {
    link = std::make_unique<Link>(loop, at.start(gateway, *this), limit, log.log, Random(seed),
                                  owner, world_gateway(gateway), world_gateway(1 - gateway), "peer",
                                  "", LinkOptions{});
    link->start();
  }
  void on_message(GatewayId, Lane lane, ConnectionId c, const SharedBytes& m) override {
    link->wire_message(lane, c, m);
  }
  void on_up(GatewayId, Lane lane, ConnectionId c) override { link->wire_up(lane, c); }
  void on_down(GatewayId, Lane lane, ConnectionId c) override { link->wire_down(lane, c); }
  void on_writable(GatewayId, Lane lane, ConnectionId connection) override {
    link->wire_writable(lane, connection);
  }
  Loop loop;
  RecordedLog log;
  RateLimit limit{0};
  RecordingOwner owner;
  std::unique_ptr<Link> link;
};

// The same with sockets: both processes dial, with one key.
TEST(Link, ASecondLiveProcessIsRefusedAndReportedOverZeroMq) {
  const auto clock = make_system_clock();
  ZmqWorld world(2), twins(2);
  twins.options(1) = world.options(1);
  twins.options(1).listen.clear();
  Process zero(*clock, "zero"), one(*clock, "one"), twin(*clock, "twin");
  const auto wait = [&](const std::function<bool()>& condition) {
    return world.run_until(
        [&] {
          twins.run_until([] { return true; }, 0);
          for (auto* process : {&zero, &one, &twin}) process->loop.run_ready();
          return condition();
        },
        20 * kSecond);
  };
  zero.start(world, 0, 1);
  one.start(world, 1, 2);
  ASSERT_TRUE(wait([&] { return zero.link->up() && one.link->up(); }));
  const auto session = zero.link->session();
  twin.start(twins, 1, 3);
  EXPECT_TRUE(wait([&] { return twin.log.count("session_refused_by_peer", "another live") > 0; }));
  EXPECT_EQ(zero.log.count("duplicate_identity"), 1U);
  // Longer than a session may be silent.
  const auto until = clock->now() + 7 * kSecond;
  wait([&] { return clock->now() > until; });
  EXPECT_EQ(zero.link->session(), session);
  EXPECT_EQ(one.link->session(), session);
  zero.link->send(numbered(0));
  zero.link->offer(5, 0, 3, std::make_shared<NumberedChunks>(1000), false);
  EXPECT_TRUE(wait([&] { return one.owner.numbers.size() == 1 && one.owner.chunks.size() == 3; }));
  EXPECT_TRUE(twin.owner.chunks.empty());
}

// No BBR, and one site that nobody can dial: chunks of both flow on several connections that it
// made.
TEST(Link, ASiteThatOnlyDialsHasSeveralConnectionsForBothDirections) {
  const auto clock = make_system_clock();
  ZmqWorld world(2);
  for (const std::size_t gateway : {0, 1}) world.options(gateway).congestion_control = "reno";
  world.options(1).listen.clear();
  world.options(1).own_address.clear();
  Process zero(*clock, "zero"), one(*clock, "one");
  zero.start(world, 0, 1);
  one.start(world, 1, 2);
  const auto wait = [&](const std::function<bool()>& condition) {
    return world.run_until(
        [&] {
          for (auto* process : {&zero, &one}) process->loop.run_ready();
          return condition();
        },
        20 * kSecond);
  };
  ASSERT_TRUE(wait([&] {
    return zero.link->status().bulk_connections == BulkWidth::kAtFirst &&
           one.link->status().bulk_connections == BulkWidth::kAtFirst;
  }));
  EXPECT_EQ(zero.link->status().congestion_control, "reno");
  EXPECT_EQ(one.link->status().congestion_control_why, "as asked for");
  EXPECT_GE(one.log.count("bulk_width"), 1U);
  constexpr std::uint32_t kChunks = 40;
  zero.link->offer(5, 0, kChunks, std::make_shared<NumberedChunks>(200'000), false);
  one.link->offer(5, 0, kChunks, std::make_shared<NumberedChunks>(200'000), false);
  EXPECT_TRUE(wait([&] {
    return zero.link->acknowledged_chunks().size() == kChunks &&
           one.link->acknowledged_chunks().size() == kChunks;
  }));
  EXPECT_EQ(zero.link->bulk_counters().chunks_resent, 0U);
  EXPECT_EQ(one.link->bulk_counters().chunks_resent, 0U);
}

// --- Round trips

TEST(RoundTrip, FollowsTheEchoesOfStampsThatWereSent) {
  RoundTrip trip;
  EXPECT_EQ(trip.mean(), 0);
  trip.stamp_sent(1000);
  trip.echoed(1700, 1000, 200);
  EXPECT_EQ(trip.mean(), 500);
  trip.echoed(90000, 1000, 0);  // a second time
  EXPECT_EQ(trip.mean(), 500);
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

// A link's connections: several at a time, one in another's place, silent ones and cut ones.
#include <gtest/gtest.h>

#include "inter/link.h"
#include "tests/inter/bulk_session.h"
#include "tests/inter/link_pair.h"
#include "tests/inter/zmq_link.h"

namespace isthmus::inter {
namespace {

// --- Several

// Where one connection does not suffice there are several, and each is on its own.
TEST(Link, ChunksLeaveOnAllConnectionsOfTheSession) {
  ScriptedPeer peer;
  begin_on_two_connections(peer, 100);
  // Nobody has said yet that 4 is the session's.
  peer.link.wire_up(Lane::bulk, 4);
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
  begin_on_two_connections(peer, 200);
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

TEST(Link, TheQueueOfTheSlowestConnectionIsToldUnderAnyCongestionControl) {
  ScriptedPeer peer;
  peer.paths = {path_with("cubic"), path_with("cubic")};
  for (const auto extra : {10, 400}) {
    auto& tcp = peer.paths[extra == 10 ? 0 : 1].tcp;
    tcp.round_trip_min = 100 * kMillisecond;
    tcp.round_trip = (100 + extra) * kMillisecond;
  }
  peer.begin_session();
  EXPECT_EQ(peer.link.status().queue_ms, 400);
}

TEST(Link, AsManyConnectionsAsTheCongestionControlNeeds) {
  ScriptedPeer peer;
  peer.paths = {path_with("cubic")};
  peer.begin_session();
  EXPECT_EQ(peer.width, BulkWidth::kManyAtFirst);
  peer.paths[0].tcp.congestion_control = "bbr";
  peer.run_for(2 * kSecond);
  EXPECT_EQ(peer.width, BulkWidth::kSome);
  EXPECT_EQ(peer.link.status().bulk_connections_why, "bbr needs no more");
  peer.paths[0].polite.emplace();
  peer.run_for(2 * kSecond);
  EXPECT_EQ(peer.width, 1U);
  // The other direction may need more than ours.
  Ack ack;
  ack.session = peer.session;
  ack.width = 9;
  ack.width_max = 40'000;
  peer.control(ack.encode());
  peer.run_for(2 * kSecond);
  EXPECT_EQ(peer.width, 9U);
  EXPECT_EQ(peer.link.status().bulk_connections_why, "as the peer wants");
  ack.width = 60'000;
  peer.control(ack.encode());
  peer.run_for(2 * kSecond);
  EXPECT_EQ(peer.width, LinkOptions().bulk_connections_max);
}

// Who listens would turn others away; what a peer says it would like is no more believed than that.
TEST(Link, AsManyConnectionsAsBothEndsTake) {
  ScriptedPeer peer;
  peer.paths = {path_with("cubic")};
  peer.begin_session();
  EXPECT_EQ(peer.width, BulkWidth::kManyAtFirst);
  const auto their_ack = [&](std::uint16_t width, std::uint16_t width_max) {
    Ack ack;
    ack.session = peer.session;
    ack.width = width;
    ack.width_max = width_max;
    peer.control(ack.encode());
    peer.run_for(2 * kSecond);
    const auto ours = peer.last(Frame::ack);
    auto in = after_kind(ours);
    return decode_ack(in).value_or(Ack{});
  };
  const auto ours = their_ack(60'000, 4);
  EXPECT_EQ(peer.width_max, 4U);
  EXPECT_EQ(peer.width, 4U);
  EXPECT_EQ(peer.link.chunks_at_once(), 4U);
  EXPECT_EQ(ours.width, 4U) << "its own wish is no higher";
  EXPECT_EQ(ours.width_max, LinkOptions().bulk_connections_max);
  // It holds for the session, and is one at least.
  their_ack(9, 100);
  EXPECT_EQ(peer.width, 4U);
  peer.link.end("test");
  peer.begin_session();
  EXPECT_EQ(peer.width, 4U) << "until it says otherwise";
  their_ack(0, 0);
  EXPECT_EQ(peer.width_max, 1U);
  EXPECT_EQ(peer.link.chunks_at_once(), 1U);
  peer.link.end("test");
  peer.begin_session();
  their_ack(1, 100);
  EXPECT_EQ(peer.width_max, 100U);
  EXPECT_EQ(peer.width, BulkWidth::kManyAtFirst) << "as many as at first again";
}

// How long a chunk may take follows from how many come at once: from no wild number.
TEST(Link, AWidthThatIsToldMakesNobodyWaitLongerThanItsConnectionsDo) {
  ScriptedPeer peer(LinkOptions{.bulk_connections_max = 4});
  peer.link.expect_chunks(10'000);
  peer.begin_session();
  const auto patience = [&](std::uint16_t width) {
    Ack ack;
    ack.session = peer.session;
    ack.width = width;
    ack.width_max = 60'000;
    peer.control(ack.encode());
    for (int i = 0; i < 6; ++i) {
      peer.received += 100'000;
      peer.run_for(kSecond);
      peer.control(ack.encode());
    }
    return peer.link.chunk_patience();
  };
  const auto of_all = patience(4);
  EXPECT_GT(of_all, patience(1));
  EXPECT_EQ(patience(0), patience(1));
  EXPECT_EQ(patience(60'000), of_all);
}

// No BBR, and one site that nobody can dial: chunks of both flow on several connections that it
// made.
TEST(Link, ASiteThatOnlyDialsHasSeveralConnectionsForBothDirections) {
  const auto clock = make_system_clock();
  ZmqWorld world(2);
  for (const std::size_t gateway : {0, 1}) world.options(gateway).congestion_control = "reno";
  world.options(1).listen.clear();
  world.options(1).own_address.clear();
  ZmqLink zero(*clock, "zero"), one(*clock, "one");
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
    return zero.link->status().bulk_connections == BulkWidth::kManyAtFirst &&
           one.link->status().bulk_connections == BulkWidth::kManyAtFirst;
  }));
  EXPECT_EQ(zero.link->status().congestion_control, "reno");
  EXPECT_EQ(one.link->status().congestion_control_why, "as asked for");
  EXPECT_GE(one.log.count("bulk_width"), 1U);
  const auto both_ways = [&](TransferId transfer, std::uint32_t chunks) {
    for (auto* end : {&zero, &one})
      end->link->offer(transfer, 0, chunks, std::make_shared<NumberedChunks>(200'000), false);
    return wait([&] { return !zero.link->sends(transfer) && !one.link->sends(transfer); });
  };
  // Until a frame of the session came on some connection, an end guesses, and may send again.
  EXPECT_TRUE(both_ways(4, 4));
  const auto resent = [&] {
    return std::pair(zero.link->bulk_counters().chunks_resent,
                     one.link->bulk_counters().chunks_resent);
  };
  const auto before = resent();
  EXPECT_TRUE(both_ways(5, 40));
  EXPECT_EQ(resent(), before);
}

// Heartbeats of an idle link cost the same with many connections, and lost words come again.
TEST(Link, ConnectionsAreBoundInTurn) {
  ScriptedPeer peer;
  peer.begin_session();
  for (ConnectionId connection = 3; connection < 42; ++connection)
    peer.link.wire_up(Lane::bulk, connection);
  peer.sent.clear();
  const auto binds = [&] {
    std::size_t sum = 0;
    for (ConnectionId connection = 2; connection < 42; ++connection)
      sum += peer.count(Frame::bind, connection);
    return sum;
  };
  for (int heartbeat = 1; heartbeat <= 5; ++heartbeat) {
    peer.control(granting(peer.session, 100));
    peer.run_for(kSecond);
    EXPECT_LE(binds(), 8U * static_cast<std::size_t>(heartbeat) + 8U);
  }
  for (ConnectionId connection = 2; connection < 42; ++connection)
    EXPECT_EQ(peer.count(Frame::bind, connection), 1U) << connection;
  // What was said before the peer had its session was in vain: it is said again at its first word.
  peer.bulk(Bind{peer.session, 5}.encode(), 7);
  peer.bulk(Bind{peer.session, 5}.encode(), 7);
  EXPECT_EQ(peer.count(Frame::bind, 7), 2U);
}

// --- Ends

// A chunk may take longer than the silence that ends a session, on a line whose full queue loses
// what control says.
TEST(Link, PartsOfAChunkAreASignOfLife) {
  ScriptedPeer peer;
  peer.paths = {path_with("bbr", 2), path_with("bbr", 3)};
  peer.begin_session();
  peer.bulk(Bind{peer.session, 0}.encode(), 2);
  peer.paths[0].tcp.silence = 500 * kMillisecond;
  peer.run_for(20 * kSecond);
  EXPECT_TRUE(peer.link.up());
  peer.paths[0].tcp.silence = 20 * kSecond;
  // Those of a connection that nobody has called the session's are none.
  peer.paths[1].tcp.silence = 0;
  peer.run_for(7 * kSecond);
  EXPECT_FALSE(peer.link.up());
}

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
  peer.bulk(Bind{peer.session, 1}.encode(), 4);
  peer.link.wire_down(Lane::bulk, 4);
  peer.link.offer(6, 0, 2, std::make_shared<NumberedChunks>(100), false);
  EXPECT_EQ(peer.count(Frame::chunk, 3), 4U);
  peer.link.wire_down(Lane::bulk, 3);
  EXPECT_EQ(peer.link.status().waiting_for, "bulk connection");
}

TEST(Link, NothingIsSentOnAConnectionThatThePeerReplacedOrNeverSpokeOn) {
  ScriptedPeer peer;
  peer.begin_session();
  peer.bulk(Bind{peer.session, 0}.encode(), 2);
  peer.link.wire_up(Lane::bulk, 3);
  peer.bulk(Bind{peer.session, 0}.encode(), 3);
  peer.link.wire_up(Lane::bulk, 4);
  peer.link.wire_down(Lane::bulk, 3);
  peer.control(granting(peer.session, 100));
  peer.link.offer(5, 0, 2, std::make_shared<NumberedChunks>(100), false);
  EXPECT_EQ(peer.link.status().waiting_for, "bulk connection");
  for (const ConnectionId connection : {2U, 4U})
    EXPECT_EQ(peer.count(Frame::chunk, connection), 0U) << connection;
  peer.bulk(Bind{peer.session, 0}.encode(), 4);
  EXPECT_EQ(peer.count(Frame::chunk, 4), 2U);
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

// Rows 3 and 4 of the fault matrix, measured as over the emulator: at both ends, and until chunks
// flow. CURVE and the session's own handshake take seven round trips: a longer way takes longer.
TEST_F(LinkPair, AnOutageIsNoticedSoonAndOverSoon) {
  constexpr std::uint32_t kChunks = 2000;
  constexpr std::uint64_t kFlowingBytes = 50'000;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random draws(seed);
    auto faults = calm(seed % 2 == 0 ? sim::SimulatedTcp::reno : sim::SimulatedTcp::bbr);
    faults.delay = static_cast<Nanoseconds>(1e6 + 49e6 * draws.uniform());
    faults.jitter = 0;  // what overtakes within a connection is none of TCP's
    start(faults, {}, seed);
    const auto offer = [&](bool again) {
      alpha->link->offer(5, 0, kChunks, std::make_shared<NumberedChunks>(200'000), again);
    };
    offer(false);
    world->run_for(kSecond + static_cast<Nanoseconds>(1e9 * draws.uniform()));
    ASSERT_GT(beta->owner.chunks.size(), 0U) << seed;
    alpha->owner.begin = [&] { offer(true); };
    beta->owner.begin = [&] {
      std::vector<bool> have(kChunks);
      for (const auto index : beta->owner.chunks) have[index] = true;
      beta->link->have(5, have);
    };
    const auto ways = draws.below(3);
    const auto set_cut = [&](bool cut) {
      if (ways != 1) world->network.cut(kAlpha, kBeta, cut);
      if (ways != 0) world->network.cut(kBeta, kAlpha, cut);
    };
    const auto began = world->simulation.now();
    set_cut(true);
    // Nothing comes any more; or the other end, of whom that is true, has said that it gives up.
    const auto notices = [](const LinkWorld::Node* end) {
      return !end->link->up() || !end->link->connected();
    };
    EXPECT_TRUE(wait([&] { return notices(alpha) && notices(beta); }, 8 * kSecond)) << seed;
    world->run_for(began + 20 * kSecond - world->simulation.now());
    EXPECT_FALSE(alpha->link->up() || beta->link->up()) << seed;
    ASSERT_LT(beta->owner.chunks.size(), kChunks);
    const auto before = beta->link->bulk_bytes_received();
    set_cut(false);
    EXPECT_TRUE(wait(
        [&] {
          return alpha->link->up() && beta->link->up() &&
                 beta->link->bulk_bytes_received() > before + kFlowingBytes;
        },
        1500 * kMillisecond))
        << seed;
  }
}

// A route that is gone, or a router that says so: attempts to connect fail at once.
TEST_F(LinkPair, AnOutageThatAnswersIsOverSoonToo) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    start(calm(), {}, seed);
    world->run_for(10 * kSecond);
    world->network.refuse_connections(kBeta.site, true);
    world->network.break_connections(kAlpha, kBeta);
    world->run_for(20 * kSecond + static_cast<Nanoseconds>(5e9 * Random(seed).uniform()));
    ASSERT_FALSE(beta->link->up());
    world->network.refuse_connections(kBeta.site, false);
    EXPECT_TRUE(wait([&] { return alpha->link->up() && beta->link->up(); }, 1500 * kMillisecond))
        << seed;
    expect_working();
  }
}

// And a longer one: the bulk lane does not wait out its own delay once the peer is there.
TEST_F(LinkPair, BulkIsDialedAsSoonAsControlIsUp) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    start(calm(), {}, seed);
    world->network.cut_bulk(kAlpha, kBeta, true);
    world->run_for(60 * kSecond);
    world->network.refuse_connections(kBeta.site, true);
    world->run_for(30 * kSecond + static_cast<Nanoseconds>(5e9 * Random(seed).uniform()));
    world->network.cut_bulk(kAlpha, kBeta, false);
    world->network.refuse_connections(kBeta.site, false);
    world->network.break_connections(kAlpha, kBeta);
    ASSERT_TRUE(wait([&] { return beta->link->connected(); }));
    EXPECT_TRUE(wait([&] { return beta->link->status().bulk_connections > 0; }, kSecond)) << seed;
  }
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

}  // namespace
}  // namespace isthmus::inter

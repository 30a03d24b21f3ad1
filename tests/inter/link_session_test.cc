// A link's handshake: whom it begins a session with, whom it refuses and by what name, and whose a
// connection is.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "inter/link.h"
#include "inter/link_frames.h"
#include "tests/inter/link_pair.h"
#include "tests/inter/zmq_link.h"

namespace isthmus::inter {
namespace {

Introduction with_codec(const std::string& codec) {
  return {.boot = 1, .run = {}, .fingerprint = {{{"codec", codec}}}};
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

// Since then no session may begin, as after the end of a roster.
TEST(Link, AHelloThatComesAgainEndsNoSession) {
  ScriptedPeer peer;
  peer.begin_session();
  ASSERT_TRUE(peer.link.up());
  Hello hello{.nonce = 77, .introduction = peer.owner.introduction};
  peer.owner.introduction = with_codec("int4");
  peer.control(hello.encode());
  EXPECT_TRUE(peer.link.up());
  EXPECT_EQ(peer.log.count("session_refused"), 0U);
  hello.nonce = 78;  // of another process
  peer.control(hello.encode());
  EXPECT_EQ(peer.log.count("session_refused"), 1U);
}

// Each end hears of it from the other one too, in other words, and both ask again and again.
TEST_F(LinkPair, AStandingRefusalIsSaidOnceAMinute) {
  world = std::make_unique<LinkWorld>(calm());
  alpha = &world->start(kAlpha, {kBeta}, with_codec("int8"));
  beta = &world->start(kBeta, {kAlpha}, with_codec("bf16"));
  const auto said = [](const LinkWorld::Node& node) {
    return node.log.count("session_refused") + node.log.count("session_refused_by_peer");
  };
  world->run_for(50 * kSecond);
  for (const auto* node : {alpha, beta}) EXPECT_EQ(said(*node), 1U);
  world->run_for(550 * kSecond);
  for (const auto* node : {alpha, beta}) {
    EXPECT_GE(said(*node), 8U);
    EXPECT_LE(said(*node), 10U);
  }
  // Another reason is another fact.
  const auto before = said(*alpha);
  beta->owner.introduction = with_codec("int4");
  world->run_for(20 * kSecond);
  EXPECT_EQ(said(*alpha), before + 1);
}

TEST(Link, AnotherProtocolVersionIsRefusedByName) {
  ScriptedPeer peer;
  peer.link.wire_up(Lane::control, 1);
  auto hello = Hello{.nonce = 5, .introduction = peer.owner.introduction}.encode();
  hello[9] = std::byte{10};  // the version, after frame and magic
  peer.control(hello);
  const auto refusal = peer.last(Frame::refuse);
  auto in = after_kind(refusal);
  EXPECT_EQ(decode_refuse(in).value_or(Refuse{}).why,
            fmt::format("protocol version: {} here, 10 there", kProtocolVersion));
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
  EXPECT_EQ(peer.count(Frame::data, 10), 2U) << "and the first one, which may be lost";
  // A number that is wrong does not.
  peer.link.wire_up(Lane::control, 12);
  peer.control(Bind{peer.session + 1, 0}.encode(), 12);
  peer.link.send(numbered(3));
  EXPECT_EQ(peer.count(Frame::data, 10), 3U);
}

TEST(LinkStates, SayWhatASessionWaitsFor) {
  ScriptedPeer peer(ScriptedPeer::Begin::later);
  EXPECT_EQ(peer.link.status().state, "connecting");
  peer.link.wire_up(Lane::control, 1);
  EXPECT_EQ(peer.link.status().state, "no ranks");
  peer.link.start();
  peer.run_for(kSecond);
  EXPECT_EQ(peer.link.status().state, "silent");
  peer.link.wire_down(Lane::control, 1);
  EXPECT_EQ(peer.link.status().state, "connecting");
  peer.begin_session();
  EXPECT_EQ(peer.link.status().state, "up");
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

// What an earlier start had said may arrive after its successor's session began, but nobody repeats
// it.
TEST(Link, AnEarlierStartIsReportedWhenItSaysHelloAgain) {
  for (const std::uint64_t boot : {5, 6, 7}) {
    ScriptedPeer peer;
    peer.owner.introduction.boot = 6;
    peer.begin_session();
    peer.link.wire_up(Lane::control, 3);
    peer.owner.introduction.boot = boot;
    for (const std::size_t time : {1, 2}) {
      peer.run_for(kSecond);
      peer.say(0, 3, 99);
      peer.run_for(kMillisecond);
      const auto asked = peer.last(Frame::ack);
      auto in = after_kind(asked);
      Ack answer;
      answer.session = peer.session;
      answer.stamp = 1;
      answer.echo = decode_ack(in)->stamp;
      answer.held = 0;
      peer.control(answer.encode());
      EXPECT_EQ(peer.count(Frame::refuse, 3), time);
      EXPECT_EQ(peer.log.count("duplicate_identity"), boot < 6 ? time - 1 : time) << boot;
    }
    EXPECT_TRUE(peer.link.up());
  }
}

// Whoever says it unasked, again and again, or makes the link ask more often by new connections.
TEST(Link, ARefusalCountsOnceInTenHeartbeatsAndNeverUnasked) {
  ScriptedPeer peer(ScriptedPeer::Begin::later);
  const auto refuse = [&](ConnectionId connection) {
    peer.control(Refuse{Refuse::Kind::duplicate, "another live process"}.encode(), connection);
  };
  const auto refusals = [&] { return peer.link.counters().refused_as_duplicate; };
  peer.link.start();
  peer.run_for(kSecond);
  refuse(1);
  EXPECT_EQ(refusals(), 0U) << "nobody was asked";
  const auto began = peer.simulation.now();
  for (ConnectionId connection = 1; peer.simulation.now() < began + 25 * kSecond; ++connection) {
    peer.link.wire_up(Lane::control, connection);
    peer.run_for(100 * kMillisecond);
    for (int i = 0; i < 3; ++i) refuse(connection);
    const auto tens = static_cast<std::uint64_t>((peer.simulation.now() - began) / (10 * kSecond));
    ASSERT_LE(refusals(), 1 + tens) << "after " << connection << " connections";
    peer.link.wire_down(Lane::control, connection);
  }
  EXPECT_EQ(refusals(), 3U);
}

// The same with sockets: both processes dial, with one key.
TEST(Link, ASecondLiveProcessIsRefusedAndReportedOverZeroMq) {
  const auto clock = make_system_clock();
  ZmqWorld world(2), twins(2);
  twins.options(1) = world.options(1);
  twins.options(1).listen.clear();
  ZmqLink zero(*clock, "zero"), one(*clock, "one"), twin(*clock, "twin");
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

// Of the end that dials, and of the other one.
TEST_F(LinkPair, ARestartTakesOverFromAConnectionThatNobodyMissed) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed)
    for (const bool dials : {false, true}) {
      auto faults = calm();
      faults.silent_deaths = 1;
      start(faults, {}, seed);
      world->kill(dials ? *beta : *alpha);
      if (dials)
        beta = &world->start(kBeta, {kAlpha, kTwin});
      else
        alpha = &world->start(kAlpha, {kBeta});
      const auto began = world->simulation.now();
      ASSERT_TRUE(wait([&] { return alpha->link->up() && beta->link->up(); })) << seed;
      EXPECT_LT(world->simulation.now() - began, 5 * kSecond) << seed;
      for (const auto* end : {alpha, beta})
        EXPECT_EQ(end->log.count("duplicate_identity"), 0U) << seed;
      expect_working();
    }
}

// A peer that begins anew all the time fills no log, and costs few sessions.
TEST(LinkSession, BegunAnewAgainAndAgainIsPaced) {
  ScriptedPeer peer;
  peer.begin_session();
  const auto lines = peer.log.lines.size();
  const auto sessions = peer.owner.sessions;
  const auto begin_anew = [&peer](std::uint64_t nonce) {
    peer.say(0, 1, nonce);
    const auto hello = peer.last(Frame::hello);
    auto in = after_kind(hello);
    peer.say(decode_hello(in)->nonce, 1, nonce);
  };
  for (std::uint64_t i = 0; i < 1000; ++i) {
    begin_anew(1000 + i);
    peer.run_for(kMillisecond);
  }
  EXPECT_LT(peer.log.lines.size() - lines, 50U);
  EXPECT_LT(peer.owner.sessions - sessions, 25);
  // Whoever means it gets its session.
  peer.run_for(2 * kSecond);
  begin_anew(5000);
  EXPECT_TRUE(peer.link.up());
}

}  // namespace
}  // namespace isthmus::inter

// Link tests between testers on a simulated network, and with a peer that says what it likes.
#include "inter/link_tester.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "inter/sending_watch.h"
#include "inter/sim/simulated_network.h"

namespace isthmus::inter {
namespace {

using testing::HasSubstr;

constexpr GatewayId kAlpha{1, 0}, kBeta{2, 0}, kGamma{3, 0};

class Node final : public WireReceiver {
 public:
  Node(sim::Simulation& simulation, sim::SimulatedNetwork& network, GatewayId self,
       std::vector<GatewayId> peers)
      : loop(simulation),
        log(simulation, "site"),
        wire(network, self, std::move(peers), -1),
        tester({.loop = loop,
                .wire = wire,
                .limit = limit,
                .log = log,
                .random = Random(self.site),
                .self = name(self),
                .name_of = [](GatewayId id) { return name(id); },
                .side = [this] { return side; },
                .exchange = [this] { return exchange; },
                .objection = [this] { return objection; }}) {
    wire.receive_with(*this);
  }
  ~Node() override { loop.abandon(); }

  static std::string name(GatewayId id) {
    return id == kAlpha ? "alpha" : id == kBeta ? "beta" : "gamma";
  }
  void on_message(GatewayId peer, Lane lane, ConnectionId, const SharedBytes& message) override {
    if (deaf) return;
    const auto bytes = message.bytes();
    if (ignores_others && bytes.front() != static_cast<std::byte>(kLinkTestFrame)) return;
    ASSERT_EQ(bytes.front(), static_cast<std::byte>(kLinkTestFrame));
    tester.on_message(peer, lane, bytes.subspan(1));
  }
  void on_up(GatewayId, Lane, ConnectionId) override { ++up; }
  void on_down(GatewayId, Lane, ConnectionId) override {}
  void on_writable(GatewayId, Lane lane, ConnectionId) override {
    if (lane == Lane::bulk) tester.on_writable();
  }

  Loop loop;
  EventLog log;
  RateLimit limit{0};
  LinkTestSide side{.tcp_rmem = "4096 131072 6291456", .tcp_wmem = "4096 16384 4194304"};
  std::string exchange, objection;
  bool deaf = false, ignores_others = false;
  int up = 0;
  sim::SimulatedWire wire;
  LinkTester tester;
};

class LinkTesterTest : public testing::Test {
 protected:
  static sim::NetworkFaults calm() {
    sim::NetworkFaults faults;
    faults.silent_deaths = faults.late_downs = faults.jitter = 0;
    return faults;
  }
  explicit LinkTesterTest(sim::NetworkFaults faults = calm())
      : network(simulation, Random(1), faults) {
    run_for(2 * kSecond);
    EXPECT_GE(alpha.up, 2);
  }
  void run_for(Nanoseconds time) {
    const auto end = simulation.now() + time;
    for (;;) {
      for (auto* node : {&alpha, &beta, &gamma}) node->loop.run_ready();
      Nanoseconds next = end + 1;
      bool timer = false;
      if (!simulation.empty()) next = std::min(next, simulation.next());
      for (auto* node : {&alpha, &beta, &gamma})
        if (const auto when = node->loop.next_timer(); when && *when < next) {
          next = *when;
          timer = true;
        }
      if (next > end) return simulation.advance(end);
      if (timer)
        simulation.advance(std::max(simulation.now(), next));
      else
        simulation.run_one();
    }
  }
  // Begins one, or asks after it; the same number for the same test.
  Result<std::string> ask(Node& node, std::uint64_t number,
                          LinkTester::Wish wish = {.peer = kBeta}) {
    return node.tester.ask(number, wish);
  }
  // What came of a test that alpha begins.
  Result<nlohmann::json> outcome(LinkTester::Wish wish = {.peer = kBeta},
                                 const std::function<void()>& meanwhile = {}) {
    const auto number = ++numbers;
    auto said = ask(alpha, number, wish);
    for (int i = 0; i < 1000 && said; ++i) {
      auto json = nlohmann::json::parse(*said);
      if (json["state"] == "done") return json;
      run_for(100 * kMillisecond);
      if (i == 20 && meanwhile) meanwhile();
      said = ask(alpha, number, wish);
    }
    return said ? Result<nlohmann::json>(Error{ErrorCode::timeout, "it never ends"})
                : Result<nlohmann::json>(said.error());
  }
  static std::string why(const Result<nlohmann::json>& result) {
    return result ? "it went well" : result.error().text();
  }

  std::uint64_t numbers = 0;
  sim::Simulation simulation;
  sim::SimulatedNetwork network;
  Node alpha{simulation, network, kAlpha, {kBeta, kGamma}};
  Node beta{simulation, network, kBeta, {kAlpha, kGamma}};
  Node gamma{simulation, network, kGamma, {kAlpha, kBeta}};
};

// An access line of 100 Mbit/s, 20 ms each way.
TEST_F(LinkTesterTest, MeasuresRoundTripAndBothDirections) {
  network.set_access(kBeta.site, 2.5e6);
  const auto report = outcome();
  ASSERT_TRUE(report) << report.error().text();
  EXPECT_EQ((*report)["here"], "alpha");
  EXPECT_EQ((*report)["peer"], "beta");
  EXPECT_NEAR((*report)["round_trip_ms"]["min"].get<double>(), 40, 2);
  EXPECT_NEAR((*report)["round_trip_ms"]["median"].get<double>(), 40, 2);
  for (const auto* direction : {"to_peer", "from_peer"}) {
    const auto& d = (*report)[direction];
    EXPECT_NEAR(d["mbit_s"].get<double>(), 20, 2) << direction;
    EXPECT_NEAR(d["warm_s"].get<double>(), 2.4, 0.3) << direction;
    EXPECT_TRUE(d["rate_limit_mbit_s"].is_null());
  }
  EXPECT_EQ((*report)["kernel_there"]["tcp_rmem"], "4096 131072 6291456");
  // Another one may follow at once.
  EXPECT_TRUE(outcome());
}

// With what a kernel tells.
class LinkTesterOverTcp : public LinkTesterTest {
 protected:
  static sim::NetworkFaults bbr() {
    auto faults = calm();
    faults.tcp = sim::SimulatedTcp::bbr;
    return faults;
  }
  LinkTesterOverTcp() : LinkTesterTest(bbr()) {}
};

TEST_F(LinkTesterOverTcp, SaysNeitherMoreThanTheLineCarriesNorLossesThatItDoesNotHave) {
  network.set_access(kBeta.site, 2.5e6);
  for (int i = 0; i < 4; ++i) {  // connections know the line from the second one on
    const auto report = outcome();
    ASSERT_TRUE(report) << report.error().text();
    for (const auto* direction : {"to_peer", "from_peer"}) {
      const auto& d = (*report)[direction];
      EXPECT_GE(d["mbit_s"].get<double>(), 18.5) << direction;
      EXPECT_LE(d["mbit_s"].get<double>(), 20.2) << direction;
      EXPECT_NEAR(d["warm_s"].get<double>(), 2.4, 0.2) << direction;
      EXPECT_LE(d["loss"].get<double>(), 1e-3) << direction;
      EXPECT_EQ(d["connections"], 4) << direction;
    }
  }
}

TEST_F(LinkTesterOverTcp, FewBytesAreMeasuredUntilTheyHaveArrived) {
  network.set_access(kBeta.site, 2.5e6);
  const auto report = outcome({.peer = kBeta, .bytes_max = 3'000'000});
  ASSERT_TRUE(report) << report.error().text();
  EXPECT_NEAR((*report)["to_peer"]["mbit_s"].get<double>(), 18, 2.2);
  EXPECT_NEAR((*report)["to_peer"]["warm_s"].get<double>(), 0.75, 0.2);
}

// All of them are handed over before a connection tells that something waits on it.
TEST_F(LinkTesterOverTcp, AlsoThoseThatLeaveAtOnce) {
  network.set_access(kBeta.site, 2.5e6);
  const auto report = outcome({.peer = kBeta, .bytes_max = 10'000});
  ASSERT_TRUE(report) << report.error().text();
  for (const auto* direction : {"to_peer", "from_peer"}) {
    EXPECT_GT((*report)[direction]["warm_s"].get<double>(), 0) << direction;
    EXPECT_GT((*report)[direction]["mbit_s"].get<double>(), 0) << direction;
  }
}

TEST_F(LinkTesterTest, KeepsToTheRateLimitAndSaysSo) {
  alpha.limit.set_rate(simulation.now(), 1e6);
  alpha.side.rate_limit = 8'000'000;
  const auto report = outcome();
  ASSERT_TRUE(report) << report.error().text();
  EXPECT_LE((*report)["to_peer"]["mbit_s"].get<double>(), 8.2);
  EXPECT_GE((*report)["to_peer"]["mbit_s"].get<double>(), 7);
  EXPECT_EQ((*report)["to_peer"]["rate_limit_mbit_s"], 8);
  EXPECT_GT((*report)["from_peer"]["mbit_s"].get<double>(), 50);
  EXPECT_THAT((*report)["advice"].dump(), HasSubstr("at alpha: its rate_limit"));
}

TEST_F(LinkTesterTest, BytesAreBounded) {
  const auto report = outcome({.peer = kBeta, .time = 20 * kSecond, .bytes_max = 3'000'000});
  ASSERT_TRUE(report) << report.error().text();
  for (const auto* direction : {"to_peer", "from_peer"}) {
    EXPECT_LE((*report)[direction]["bytes"].get<double>(), 3.1e6);
    EXPECT_GE((*report)[direction]["bytes"].get<double>(), 2.5e6);
  }
}

TEST_F(LinkTesterTest, IsRefusedDuringAnExchangeOfEitherSideUnlessForced) {
  alpha.exchange = "outer step 3 is being exchanged";
  auto refused = outcome();
  EXPECT_FALSE(refused);
  EXPECT_THAT(why(refused), HasSubstr("outer step 3 is being exchanged"));
  EXPECT_THAT(why(refused), HasSubstr("--force"));
  EXPECT_EQ(refused.error().code, ErrorCode::busy);
  EXPECT_TRUE(outcome({.peer = kBeta, .force = true}));

  alpha.exchange.clear();
  beta.exchange = "bytes are on their way to gamma";
  refused = outcome();
  EXPECT_THAT(why(refused), HasSubstr("beta refuses: bytes are on their way to gamma"));
  EXPECT_TRUE(outcome({.peer = kBeta, .force = true}));
}

// Each time bulk of ours would wait for theirs. Our own operator may.
TEST_F(LinkTesterTest, OneSiteForcesATestThroughAnExchangeNowAndThenOnly) {
  beta.exchange = "outer step 3 is being exchanged";
  ASSERT_TRUE(outcome({.peer = kBeta, .force = true}));
  run_for(2 * 60 * kSecond);
  const auto refused = outcome({.peer = kBeta, .force = true});
  EXPECT_THAT(why(refused), HasSubstr("beta refuses: outer step 3 is being exchanged"));
  EXPECT_THAT(why(refused), HasSubstr("alpha forced a test less than 10 minutes ago, and may force "
                                      "another one in 8 minutes"));
  // Through none it has not to.
  beta.exchange.clear();
  EXPECT_TRUE(outcome({.peer = kBeta, .force = true}));
  const auto ended =
      outcome({.peer = kBeta, .force = true}, [&] { beta.exchange = "outer step 4"; });
  EXPECT_THAT(why(ended), HasSubstr("beta ended the test: outer step 4: alpha forced a test"));
  alpha.exchange = beta.exchange;
  for (int i = 0; i < 2; ++i) {
    const auto number = ++numbers;
    ASSERT_TRUE(ask(beta, number, {.peer = kGamma, .force = true}));
    run_for(12 * kSecond);
    EXPECT_EQ(nlohmann::json::parse(*ask(beta, number, {}))["state"], "done");
  }
  run_for(8 * 60 * kSecond);
  EXPECT_TRUE(outcome({.peer = kBeta, .force = true}));
}

TEST_F(LinkTesterTest, AForcedTestThatBeganWithoutAnExchangeCountsOnceThereIsOne) {
  EXPECT_TRUE(outcome({.peer = kBeta, .force = true}, [&] { beta.exchange = "outer step 4"; }));
  EXPECT_THAT(why(outcome({.peer = kBeta, .force = true})), HasSubstr("in 10 minutes"));
}

// Who asks says what comes next: no test is made longer than one by that.
TEST_F(LinkTesterTest, NobodyIsSentMoreThanOnceInATestNorKeepsItGoing) {
  const auto say = [&](LinkTestFrame kind, const auto& body) {
    auto frame = link_test_frame(kind, 9);
    body.write(frame);
    ASSERT_TRUE(gamma.wire.send(kBeta, Lane::control, frame.take(), 0));
  };
  beta.exchange = "outer step 3 is being exchanged";
  gamma.deaf = true;
  say(LinkTestFrame::ask, LinkTestAsk{.force = true});
  run_for(kSecond);
  for (int i = 0; i < 40; ++i) {
    say(LinkTestFrame::send, LinkTestPlan{.time = kSecond, .bytes_max = 1'000'000});
    run_for(5 * kSecond);
  }
  EXPECT_LT(gamma.wire.bytes_received(kBeta), 1'100'000U);
  EXPECT_TRUE(ask(beta, 1, {.peer = kAlpha, .force = true})) << "it is over";
}

TEST_F(LinkTesterTest, AnExchangeThatBeginsEndsIt) {
  EXPECT_THAT(why(outcome({.peer = kBeta}, [&] { alpha.exchange = "outer step 4"; })),
              HasSubstr("outer step 4"));
  alpha.exchange.clear();
  const auto ended = outcome({.peer = kBeta}, [&] { beta.exchange = "outer step 5"; });
  EXPECT_THAT(why(ended), HasSubstr("beta ended the test: "));
  EXPECT_THAT(why(ended), HasSubstr("outer step 5"));
  beta.exchange.clear();
  EXPECT_TRUE(outcome());
}

TEST_F(LinkTesterTest, NobodyWhoWantsItEndsItAtBothEnds) {
  for (const auto moved :
       {10 * kMillisecond, 2 * kSecond, 6 * kSecond}) {  // asked, there, and back
    const auto number = ++numbers;
    ASSERT_TRUE(ask(alpha, number));
    run_for(moved);
    alpha.tester.stop(number + 1);  // another one's
    EXPECT_TRUE(ask(alpha, number));
    alpha.tester.stop(number);
    const auto stopped = ask(alpha, number);
    ASSERT_FALSE(stopped);
    EXPECT_EQ(stopped.error().code, ErrorCode::cancelled);
    // What had been handed over by then may still arrive; nothing more is.
    run_for(300 * kMillisecond);
    const auto sent = alpha.wire.bytes_sent(kBeta) + beta.wire.bytes_sent(kAlpha);
    run_for(kSecond);
    EXPECT_EQ(alpha.wire.bytes_sent(kBeta) + beta.wire.bytes_sent(kAlpha), sent);
    // Both are free for another one, and this one's end is not taken for its.
    ASSERT_TRUE(ask(beta, ++numbers, {.peer = kGamma, .time = kSecond}));
    run_for(5 * kSecond);
    EXPECT_EQ(nlohmann::json::parse(*ask(beta, numbers, {}))["state"], "done");
  }
  EXPECT_TRUE(outcome());
  alpha.tester.stop(numbers);
  EXPECT_EQ(nlohmann::json::parse(*ask(alpha, numbers))["state"], "done");
}

TEST_F(LinkTesterTest, OneAtATimeWhoeverAsks) {
  ASSERT_TRUE(ask(alpha, 1));
  run_for(kSecond);
  const auto second = ask(alpha, 2);
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().text(), HasSubstr("a test of the link to beta is going on"));
  // Also at the site that is tested.
  const auto third = ask(beta, 3, {.peer = kGamma});
  EXPECT_FALSE(third);
  ASSERT_TRUE(ask(gamma, 4, {.peer = kBeta, .force = true}));
  run_for(2 * kSecond);
  const auto fourth = ask(gamma, 4, {.peer = kBeta, .force = true});
  ASSERT_FALSE(fourth);
  EXPECT_THAT(fourth.error().text(), HasSubstr("beta tests its link to alpha just now"));
  run_for(20 * kSecond);
  EXPECT_EQ(nlohmann::json::parse(*ask(alpha, 1))["state"], "done");
}

TEST_F(LinkTesterTest, AnObjectionHoldsEvenWhenItIsForced) {
  beta.objection = "the roster has expired";
  EXPECT_THAT(why(outcome({.peer = kBeta, .force = true})), HasSubstr("the roster has expired"));
}

TEST_F(LinkTesterTest, APeerThatKnowsNoLinkTestsIsNamed) {
  beta.deaf = true;
  const auto failed = outcome();
  EXPECT_THAT(why(failed), HasSubstr("beta does not answer: is its gateway up"));
  EXPECT_EQ(failed.error().code, ErrorCode::timeout);
  beta.deaf = false;
  EXPECT_TRUE(outcome());
}

TEST_F(LinkTesterTest, APeerThatFallsSilentEndsItAtBothEnds) {
  EXPECT_THAT(why(outcome({.peer = kBeta}, [&] { beta.deaf = alpha.deaf = true; })),
              HasSubstr("beta"));
  run_for(30 * kSecond);
  beta.deaf = alpha.deaf = false;
  EXPECT_TRUE(outcome());
}

// What moves besides, before, while it goes on, and after.
TEST_F(LinkTesterTest, ItsBytesAreCountedApartAndNoCountFalls) {
  network.set_access(kBeta.site, 2.5e6);
  alpha.ignores_others = beta.ignores_others = true;
  const auto say = [&] {
    ASSERT_TRUE(alpha.wire.send(kBeta, Lane::control, Bytes(936), 0));
    run_for(100 * kMillisecond);
  };
  const auto whole = [](const Node& node, GatewayId peer) {
    return node.wire.bytes_sent(peer) + node.wire.bytes_received(peer);
  };
  const auto before = alpha.tester.shares(kBeta).others;
  for (int i = 0; i < 3; ++i) say();
  EXPECT_EQ(alpha.tester.shares(kBeta).others.sent, before.sent + 3000);
  EXPECT_EQ(alpha.tester.shares(kBeta).tests.sent, 0U);
  const auto number = ++numbers;
  ASSERT_TRUE(ask(alpha, number));
  LinkTester::Shares last;
  for (int i = 0; i < 200; ++i) {
    if (i % 10 == 0) say();
    run_for(100 * kMillisecond);
    const auto now = alpha.tester.shares(kBeta);
    EXPECT_GE(now.others.sent, last.others.sent);
    EXPECT_GE(now.others.received, last.others.received);
    EXPECT_GE(now.tests.sent, last.tests.sent);
    EXPECT_GE(now.tests.received, last.tests.received);
    last = now;
  }
  ASSERT_EQ(nlohmann::json::parse(*ask(alpha, number))["state"], "done");
  EXPECT_GT(last.tests.sent, 8'000'000U);
  EXPECT_EQ(last.others.sent, before.sent + 23'000);
  EXPECT_EQ(last.others.received, before.received);
  EXPECT_EQ(last.tests.sent + last.tests.received + last.others.sent + last.others.received,
            whole(alpha, kBeta));
  const auto there = beta.tester.shares(kAlpha);
  EXPECT_EQ(there.tests.sent, last.tests.received);
  EXPECT_EQ(there.tests.received, last.tests.sent);
  EXPECT_EQ(there.others.received, last.others.sent);
  EXPECT_EQ(alpha.tester.shares(kGamma).tests.sent, 0U);
}

// Neither a peer that says what belongs to no test, nor one that asks in vain, keeps them back.
TEST_F(LinkTesterTest, WordsOfNoTestDoNotPutOffTheCountOfOthers) {
  alpha.ignores_others = beta.ignores_others = true;
  alpha.exchange = "outer step 3 is being exchanged";
  auto stray = link_test_frame(LinkTestFrame::pong, 77);
  auto asks = link_test_frame(LinkTestFrame::ask, 78);
  LinkTestAsk{}.write(asks);
  for (const auto& frame : {stray.take(), asks.take()}) {
    const auto before = alpha.tester.shares(kBeta).others;
    for (int i = 0; i < 30; ++i) {
      ASSERT_TRUE(beta.wire.send(kAlpha, Lane::control, Bytes(frame), 0));
      ASSERT_TRUE(alpha.wire.send(kBeta, Lane::control, Bytes(936), 0));
      run_for(kSecond);
      ASSERT_NEAR(alpha.tester.shares(kBeta).others.sent, before.sent + 1000.0 * (i + 1), 1000);
    }
  }
}

// Gamma speaks for itself: what it says of beta's test is nothing, and nobody sends for it.
TEST_F(LinkTesterTest, WordsOfOthersAreNotHeard) {
  ASSERT_TRUE(ask(alpha, 1));
  run_for(kSecond / 10);
  auto frame = link_test_frame(LinkTestFrame::end, 1);
  frame.string("go away");
  for (int id = 0; id < 3; ++id)
    (void)gamma.wire.send(kAlpha, Lane::control, Bytes(frame.view().begin(), frame.view().end()),
                          0);
  auto data = link_test_frame(LinkTestFrame::data, 77);
  (void)gamma.wire.send(kAlpha, Lane::bulk, data.take(), 0);
  auto send = link_test_frame(LinkTestFrame::send, 77);
  LinkTestPlan{.time = kSecond, .bytes_max = 1000}.write(send);
  (void)gamma.wire.send(kAlpha, Lane::control, send.take(), 0);
  run_for(20 * kSecond);
  EXPECT_EQ(nlohmann::json::parse(*ask(alpha, 1))["state"], "done");
  EXPECT_LT(gamma.wire.bytes_received(kAlpha), 1000U);
}

void add(TestedBytes& bytes, Nanoseconds now, const TestedBytes::Count& message,
         const TestedBytes::Count& all) {
  bytes.add(now, message);
  bytes.goes_on(now, all);
}

TEST(TestedBytes, WhatTheWireCountsEarlierOrLaterIsNobodyElses) {
  TestedBytes bytes;
  EXPECT_EQ(bytes.others(kSecond, {1000, 2000}).received, 2000U);
  // Handed over and not sent yet; a part of one that comes is counted before the whole.
  add(bytes, 2 * kSecond, {.sent = 600, .received = 0}, {1100, 2100});
  EXPECT_EQ(bytes.others(3 * kSecond, {1200, 9000}).received, 2100U);
  EXPECT_EQ(bytes.others(3 * kSecond, {1200, 9000}).sent, 1000U);
  add(bytes, 4 * kSecond, {.sent = 0, .received = 7000}, {1700, 9100});
  EXPECT_EQ(bytes.others(4 * kSecond, {1750, 9150}).sent, 1000U);
  // At rest.
  const auto others = bytes.others(4 * kSecond + TestedBytes::kSettles, {1750, 9150});
  EXPECT_EQ(others.sent, 1150U);
  EXPECT_EQ(others.received, 2150U);
  EXPECT_EQ(bytes.tests().received, 7000U);
}

TEST(TestedBytes, WhatIsLostWithItsConnectionIsNotTakenFromTheOthersForGood) {
  TestedBytes bytes;
  EXPECT_EQ(bytes.others(kSecond, {1000, 0}).sent, 1000U);
  add(bytes, 2 * kSecond, {.sent = 5000, .received = 0}, {1000, 0});
  EXPECT_EQ(bytes.others(30 * kSecond, {2000, 0}).sent, 1000U) << "it may still leave";
  const auto lost = 2 * kSecond + TestedBytes::kLost;
  EXPECT_EQ(bytes.others(lost, {2000, 0}).sent, 1000U);
  EXPECT_EQ(bytes.others(lost, {2300, 0}).sent, 1300U);
  EXPECT_EQ(bytes.tests().sent, 5000U);
  // Another test's count is not touched by it.
  add(bytes, lost, {.sent = 400, .received = 0}, {2300, 0});
  EXPECT_EQ(bytes.others(lost + 9 * kSecond, {2750, 0}).sent, 1350U);
}

TEST(TestedBytes, WithoutARestItIsSettledAllTheSame) {
  TestedBytes bytes;
  TestedBytes::Count all;
  for (auto now = kSecond; now < 600 * kSecond; now += kSecond) {
    all.sent += 1000;  // half of it a test's
    add(bytes, now, {.sent = 500, .received = 0}, all);
    const auto others = bytes.others(now, all).sent;
    EXPECT_LE(others, all.sent / 2);
    EXPECT_GE(others + 500 * (kLinkTestLongest / kSecond + 1), all.sent / 2) << seconds_of(now);
  }
}

TEST(LinkTestReport, TheRampIsLeftOutOfTheRate) {
  std::vector<LinkTestSample> samples;
  std::uint64_t bytes = 500;
  for (int i = 0; i <= 100; ++i) {
    samples.push_back({(100 + i) * 10 * kMillisecond, bytes});
    bytes += i < 30 ? 1000 : 12'500;  // 10 Mbit/s
  }
  for (int i = 101; i < 110; ++i)  // and silence
    samples.push_back({(100 + i) * 10 * kMillisecond, samples[100].bytes});
  const auto got = warm_rate(samples);
  EXPECT_NEAR(got.bits_per_second, 10e6, 1e3);
  EXPECT_EQ(got.warm, 600 * kMillisecond);
  EXPECT_EQ(got.bytes, samples.back().bytes - 500);
  EXPECT_EQ(warm_rate({}).bits_per_second, 0);
  EXPECT_EQ(warm_rate(std::vector<LinkTestSample>{{5, 1}}).bits_per_second, 0);
  EXPECT_EQ(warm_rate(std::vector<LinkTestSample>(4, {5, 1})).bits_per_second, 0);
}

BulkPath a_path(ConnectionId connection, std::uint64_t arrived, std::uint64_t segments,
                std::uint64_t resent) {
  BulkPath path;
  path.connection = connection;
  path.tcp.congestion_control = "bbr";
  path.tcp.arrived_bytes = arrived;
  path.tcp.segments_sent = segments;
  path.tcp.segments_resent = resent;
  path.tcp.busy = kSecond;
  return path;
}

TEST(SendingWatch, LossesOfTheRampAndOtherConnectionsAreNotTheTests) {
  // What was sent before the test, and by a connection that it does not use.
  std::vector<BulkPath> paths = {a_path(1, 70'000, 500, 400), a_path(2, 0, 0, 0)};
  SendingWatch watch(paths);
  paths.push_back(a_path(3, 1'000'000, 9000, 9000));
  watch.look(0, paths);
  for (int i = 1; i <= 100; ++i) {
    auto& tcp = paths[i % 2].tcp;
    tcp.arrived_bytes += 10'000;  // each 10 ms
    tcp.segments_sent += 10;
    // The start-up fills the queue; later on one packet in a hundred is lost.
    tcp.segments_resent += i <= 30 ? 5 : i % 10 == 0;
    tcp.busy += 10 * kMillisecond;
    tcp.waiting_bytes = 100;
    paths[2].tcp.segments_resent += 100;
    watch.look(i * 10 * kMillisecond, paths);
    EXPECT_FALSE(watch.all_arrived());
  }
  paths[0].tcp.waiting_bytes = paths[1].tcp.waiting_bytes = 0;
  watch.look(1100 * kMillisecond, paths);
  EXPECT_TRUE(watch.all_arrived());
  // And one that goes leaves what it has sent.
  paths.erase(paths.begin());
  watch.look(1200 * kMillisecond, paths);
  const auto sent = watch.warm();
  EXPECT_EQ(sent.warm, 600 * kMillisecond);
  EXPECT_EQ(sent.arrived, 600'000U);
  EXPECT_EQ(sent.segments, 600U);
  EXPECT_EQ(sent.segments_resent, 6U);
  EXPECT_EQ(sent.busy, 600 * kMillisecond);
  EXPECT_EQ(sent.connections, 2U);
  EXPECT_EQ(sent.congestion_control, "bbr");
  LinkTestReport::Direction direction{sent, {.bits_per_second = 9e6, .warm = kSecond, .bytes = 0}};
  EXPECT_DOUBLE_EQ(direction.bits_per_second(), 8e6);
}

TEST(SendingWatch, WithoutAKernelThatTellsTheReceiverDoes) {
  SendingWatch watch({});
  watch.look(0, {});
  watch.look(kSecond, {});
  EXPECT_TRUE(watch.all_arrived());
  EXPECT_EQ(watch.warm().warm, 0);
  LinkTestReport::Direction direction{watch.warm(),
                                      {.bits_per_second = 9e6, .warm = kSecond, .bytes = 0}};
  EXPECT_DOUBLE_EQ(direction.bits_per_second(), 9e6);
  EXPECT_EQ(direction.warm(), kSecond);
}

TEST(LinkTestReport, TooSmallWindowsComeWithTheCommandThatRaisesThem) {
  LinkTestReport report;
  report.here = "alpha";
  report.there = "beta";
  report.side_here = {.tcp_rmem = "4096\t131072\t6291456", .tcp_wmem = "4096\t16384\t4194304"};
  report.side_there = {.tcp_rmem = "4096 131072 67108864", .tcp_wmem = "4096 16384 67108864"};
  report.round_trips = {100 * kMillisecond, 102 * kMillisecond, 160 * kMillisecond};
  LinkTestSent sent;
  sent.segments = 1000;
  sent.segments_resent = 5;
  sent.busy = 4 * kSecond;
  sent.congestion_control = "bbr";
  sent.congestion_control_why = "as asked for";
  report.to_peer = {sent, {.bits_per_second = 400e6, .warm = 2 * kSecond, .bytes = 1000}};
  report.from_peer = report.to_peer;
  // 5 MB on their way: alpha's 4 MiB send buffer and 6 MiB receive buffer are too small for that.
  const auto advice = report.advice();
  ASSERT_EQ(advice.size(), 2U);
  EXPECT_THAT(advice[0],
              HasSubstr("at alpha: sysctl -w net.ipv4.tcp_wmem=\"4096 16384 33554432\""));
  EXPECT_THAT(advice[1],
              HasSubstr("at alpha: sysctl -w net.ipv4.tcp_rmem=\"4096 131072 33554432\""));
  const auto json = nlohmann::json::parse(report.to_json());
  EXPECT_EQ(json["to_peer"]["loss"], 0.005);
  EXPECT_EQ(json["to_peer"]["connections"], 1);
  // Each of four carries a quarter of that.
  report.to_peer.sent.connections = report.from_peer.sent.connections = 4;
  EXPECT_TRUE(report.advice().empty());
  report.to_peer.sent.connections = report.from_peer.sent.connections = 1;
  EXPECT_EQ(json["to_peer"]["bandwidth_delay_bytes"], 5'000'000);
  EXPECT_EQ(json["round_trip_ms"]["median"], 102);
  EXPECT_EQ(json["advice"].size(), 2U);

  // Slower, but held back by the window: the line's own product is not known.
  report.side_there.tcp_rmem = report.side_here.tcp_rmem;
  report.to_peer.got.bits_per_second = report.from_peer.got.bits_per_second = 160e6;
  EXPECT_TRUE(report.advice().empty());
  report.to_peer.sent.limited_by_window = 2 * kSecond;
  ASSERT_EQ(report.advice().size(), 1U);
  EXPECT_THAT(report.advice()[0],
              HasSubstr("at beta: sysctl -w net.ipv4.tcp_rmem=\"4096 131072 16777216\" (the "
                        "receiver's window held the sender back 50 % of the time)"));
  // By far less than the window could hold: its reader was slow.
  report.to_peer.got.bits_per_second = 1e6;
  EXPECT_TRUE(report.advice().empty());
  report.to_peer.got.bits_per_second = 160e6;
  report.from_peer.sent.congestion_control = "cubic";
  report.from_peer.sent.congestion_control_why = "the system refused bbr";
  ASSERT_EQ(report.advice().size(), 2U);
  EXPECT_THAT(report.advice()[1], HasSubstr("at beta: the system refused bbr, cubic is in force"));
}

}  // namespace
}  // namespace isthmus::inter

// Link tests between testers on a simulated network, and with a peer that says what it likes.
#include "inter/link_tester.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

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
    if (hears) return hears(bytes.subspan(1));
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
  std::function<void(std::span<const std::byte>)> hears;  // in place of the tester
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
  network.set_access(kBeta.site, 10e3);
  const auto report = outcome({.peer = kBeta, .bytes_max = 30'000});
  ASSERT_TRUE(report) << report.error().text();
  for (const auto* direction : {"to_peer", "from_peer"}) {
    EXPECT_GT((*report)[direction]["warm_s"].get<double>(), 0) << direction;
    EXPECT_GT((*report)[direction]["mbit_s"].get<double>(), 0) << direction;
  }
}

TEST_F(LinkTesterOverTcp, TooFewBytesAreNoFigure) {
  network.set_access(kBeta.site, 2.5e6);
  for (const std::uint64_t bytes : {10'000, 100'000}) {
    const auto report = outcome({.peer = kBeta, .bytes_max = bytes});
    ASSERT_TRUE(report) << report.error().text();
    for (const auto* direction : {"to_peer", "from_peer"}) {
      EXPECT_TRUE((*report)[direction]["mbit_s"].is_null()) << direction;
      EXPECT_GE((*report)[direction]["bytes"].get<std::uint64_t>(), bytes) << direction;
    }
    EXPECT_THAT((*report)["advice"].dump(), HasSubstr("with more bytes (--bytes)"));
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

// What goes beside a forced test on the same connections is none of its bytes, and said where
// nobody can tell it from them.
TEST_F(LinkTesterTest, BytesOfAnExchangeAreNotTheTests) {
  alpha.ignores_others = beta.ignores_others = true;
  alpha.exchange = "outer step 3 is being exchanged";
  const LinkTester::Wish wish{
      .peer = kBeta, .force = true, .time = 4 * kSecond, .bytes_max = 3'000'000};
  const auto number = ++numbers;
  nlohmann::json report = {{"state", "running"}};
  for (int i = 0; i < 300 && report["state"] != "done"; ++i) {
    const auto said = ask(alpha, number, wish);
    ASSERT_TRUE(said) << said.error().text();
    report = nlohmann::json::parse(*said);
    for (auto* node : {&alpha, &beta})
      (void)node->wire.send(node == &alpha ? kBeta : kAlpha, Lane::bulk, Bytes(100'000), 0);
    run_for(20 * kMillisecond);
  }
  ASSERT_EQ(report["state"], "done");
  for (const auto* direction : {"to_peer", "from_peer"}) {
    EXPECT_GE(report[direction]["bytes"].get<double>(), 2.9e6) << direction;
    EXPECT_LE(report[direction]["bytes"].get<double>(), 3.01e6) << direction;
    EXPECT_EQ(report[direction]["beside_exchange"], true) << direction;
  }
  alpha.exchange.clear();
  const auto alone = outcome(wish);
  ASSERT_TRUE(alone) << alone.error().text();
  for (const auto* direction : {"to_peer", "from_peer"})
    EXPECT_EQ((*alone)[direction]["beside_exchange"], false) << direction;
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

class HastyPeerTest : public LinkTesterTest {
 protected:
  // A test that gamma asks of beta, has begun and ends, all in one turn of beta's loop.
  void hurry(LinkTestId id) {
    gamma.deaf = true;
    const auto say = [&](LinkTestFrame kind, const auto& write) {
      auto frame = link_test_frame(kind, id);
      write(frame);
      beta.tester.on_message(kGamma, Lane::control, std::span(frame.view()).subspan(1));
    };
    say(LinkTestFrame::ask, [](ByteWriter& out) { LinkTestAsk{.force = true}.write(out); });
    say(LinkTestFrame::send,
        [](ByteWriter& out) { LinkTestPlan{.time = kSecond, .bytes_max = 1'000'000}.write(out); });
    say(LinkTestFrame::end, [](ByteWriter& out) { out.string(""); });
  }
};

// Each would wait for its turn at the rate limit, and beta's own bulk behind all of them.
TEST_F(HastyPeerTest, TakesNothingOfTheRateLimitWithTestsThatItEnds) {
  beta.limit.set_rate(simulation.now(), 100e3);
  for (LinkTestId id = 1; id <= 2000; ++id) {
    hurry(id);
    run_for(kMillisecond);
  }
  run_for(kSecond);
  EXPECT_TRUE(beta.limit.idle(simulation.now()));
  gamma.deaf = false;
  EXPECT_TRUE(ask(gamma, 1, {.peer = kBeta}));
  run_for(20 * kSecond);
  const auto said = ask(gamma, 1, {});
  ASSERT_TRUE(said) << said.error().text();
  EXPECT_EQ(nlohmann::json::parse(*said)["state"], "done");
}

TEST_F(HastyPeerTest, HasForcedOneThatItEndsAtOnce) {
  beta.exchange = "outer step 3 is being exchanged";
  hurry(1);
  run_for(kSecond);
  gamma.deaf = false;
  ASSERT_TRUE(ask(gamma, 1, {.peer = kBeta, .force = true}));
  run_for(2 * kSecond);
  const auto refused = ask(gamma, 1, {});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().text(), HasSubstr("gamma forced a test less than 10 minutes ago"));
}

// The line takes the last message only after the time is over.
TEST_F(LinkTesterTest, SaysWhatItHasSentAndNoMore) {
  network.set_access(kBeta.site, 50e3);
  std::uint64_t came = 0;
  std::optional<LinkTestSent> sent;
  gamma.hears = [&](std::span<const std::byte> message) {
    ByteReader in(message);
    const auto kind = in.get<LinkTestFrame>();
    in.get<LinkTestId>();
    if (kind == LinkTestFrame::data) came += message.size();
    if (kind == LinkTestFrame::sent) sent = LinkTestSent::read(in);
  };
  const auto say = [&](LinkTestFrame kind, const auto& body) {
    auto frame = link_test_frame(kind, 9);
    body.write(frame);
    ASSERT_TRUE(gamma.wire.send(kBeta, Lane::control, frame.take(), 0));
  };
  say(LinkTestFrame::ask, LinkTestAsk{});
  run_for(kSecond);
  say(LinkTestFrame::send, LinkTestPlan{.time = 4 * kSecond, .bytes_max = 100'000'000});
  run_for(120 * kSecond);
  ASSERT_TRUE(sent);
  EXPECT_GT(came, 100'000U);
  EXPECT_EQ(sent->bytes, came);
}

TEST_F(LinkTesterTest, AnExchangeThatBeginsEndsIt) {
  EXPECT_THAT(why(outcome({.peer = kBeta}, [&] { alpha.exchange = "outer step 4"; })),
              HasSubstr("outer step 4"));
  alpha.exchange.clear();
  const auto ended = outcome({.peer = kBeta}, [&] { beta.exchange = "outer step 5"; });
  EXPECT_THAT(why(ended), HasSubstr("beta ended the test: "));
  EXPECT_THAT(why(ended), HasSubstr("outer step 5"));
  EXPECT_EQ(ended.error().code, ErrorCode::unavailable) << "nobody here has stopped it";
  beta.exchange.clear();
  EXPECT_TRUE(outcome());
}

// As when its gateway is killed while it sends: its last word was data.
TEST_F(LinkTesterTest, APeerThatSendsNoMoreIsWaitedForTenSeconds) {
  ASSERT_TRUE(ask(alpha, 1));
  run_for(7 * kSecond);
  ASSERT_THAT(*ask(alpha, 1), HasSubstr("beta to alpha"));
  network.cut(kBeta, kAlpha, true);
  run_for(9 * kSecond);
  EXPECT_TRUE(ask(alpha, 1));
  run_for(2 * kSecond);
  const auto ended = ask(alpha, 1);
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::timeout);
}

// As when its gateway is killed: the other end does not wait for what will not come.
TEST_F(LinkTesterTest, ALostConnectionEndsItAtBothEnds) {
  for (const auto moved : {kSecond, 3 * kSecond, 7 * kSecond}) {  // there, and back
    const auto number = ++numbers;
    ASSERT_TRUE(ask(alpha, number));
    run_for(moved);
    alpha.tester.on_lost(kGamma);  // another one's
    EXPECT_TRUE(ask(alpha, number));
    beta.deaf = true;  // to alpha's last word, which would end it too
    alpha.tester.on_lost(kBeta);
    run_for(200 * kMillisecond);
    beta.deaf = false;
    EXPECT_FALSE(ask(beta, ++numbers, {.peer = kGamma}));
    beta.tester.on_lost(kAlpha);
    const auto ended = ask(alpha, number);
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().code, ErrorCode::unavailable);
    EXPECT_THAT(ended.error().text(), HasSubstr("the connection with beta is gone"));
    run_for(300 * kMillisecond);
    EXPECT_TRUE(ask(beta, ++numbers, {.peer = kGamma, .time = kSecond}));
    run_for(5 * kSecond);
    EXPECT_EQ(nlohmann::json::parse(*ask(beta, numbers, {}))["state"], "done");
  }
}

// Its gateway was killed, and asks anew before this end has heard of that.
TEST_F(LinkTesterTest, WhoAsksAnewHasGivenUpItsLastTest) {
  ASSERT_TRUE(ask(alpha, 1));
  run_for(3 * kSecond);
  alpha.deaf = true;
  ByteWriter anew = link_test_frame(LinkTestFrame::ask, 77);
  LinkTestAsk{}.write(anew);
  ASSERT_TRUE(alpha.wire.send(kBeta, Lane::control, anew.take(), 0));
  run_for(300 * kMillisecond);
  anew = link_test_frame(LinkTestFrame::ask, 77);
  LinkTestAsk{}.write(anew);
  std::optional<std::string> refusal;
  alpha.deaf = false;
  alpha.hears = [&](std::span<const std::byte> frame) {
    ByteReader in(frame);
    if (in.get<LinkTestFrame>() != LinkTestFrame::answer || in.get<LinkTestId>() != 77) return;
    if (const auto answer = LinkTestAnswer::read(in)) refusal = answer->refusal;
  };
  ASSERT_TRUE(alpha.wire.send(kBeta, Lane::control, anew.take(), 0));
  run_for(300 * kMillisecond);
  EXPECT_EQ(refusal, "");
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
  EXPECT_THAT(second.error().text(), HasSubstr("alpha tests its link to beta just now"));
  // Also at the site that is tested.
  const auto third = ask(beta, 3, {.peer = kGamma});
  EXPECT_FALSE(third);
  ASSERT_TRUE(ask(gamma, 4, {.peer = kBeta, .force = true}));
  run_for(2 * kSecond);
  const auto fourth = ask(gamma, 4, {.peer = kBeta, .force = true});
  ASSERT_FALSE(fourth);
  EXPECT_THAT(fourth.error().text(), HasSubstr("alpha tests its link to beta just now"));
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

}  // namespace
}  // namespace isthmus::inter

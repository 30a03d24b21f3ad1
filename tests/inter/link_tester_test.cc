// Link tests: what they measure, and how they end.
#include "inter/link_tester.h"

#include "tests/inter/linked_testers.h"

namespace isthmus::inter {
namespace {

using testing::HasSubstr;

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

// Its messages are small there.
TEST_F(LinkTesterTest, WhatCarriesItsBytesCountsAtAThinRateLimitToo) {
  for (auto* node : {&alpha, &beta}) node->limit.set_rate(simulation.now(), 8000);
  const auto report = outcome({.peer = kBeta, .time = 20 * kSecond});
  ASSERT_TRUE(report) << report.error().text();
  for (const auto* direction : {"to_peer", "from_peer"}) {
    EXPECT_LE((*report)[direction]["mbit_s"].get<double>(), 0.0645) << direction;
    EXPECT_GE((*report)[direction]["mbit_s"].get<double>(), 0.0600) << direction;
  }
}

// As when an hour with another limit begins.
TEST_F(LinkTesterTest, HasNoLongerToWaitThanTheRateLimitOfNow) {
  alpha.limit.set_rate(simulation.now(), 300);
  const auto report = outcome({.peer = kBeta, .time = 10 * kSecond},
                              [&] { alpha.limit.set_rate(simulation.now(), 1e6); });
  ASSERT_TRUE(report) << report.error().text();
  EXPECT_GE((*report)["to_peer"]["bytes"].get<double>(), 6e6);
}

// Of an exchange the wire has more than it can send: what comes of a forced test is behind it.
class FullWireTest : public LinkTesterTest {
 protected:
  // How it ends, where the line to beta is full from the moment on at which alpha has its last
  // round trip, and its data would leave.
  Result<nlohmann::json> outcome_when_full(double bytes_per_second) {
    alpha.exchange = beta.exchange = "outer step 3 is being exchanged";
    beta.ignores_others = true;
    network.set_access(kAlpha.site, bytes_per_second);
    alpha.hears = [this, pongs = 0](std::span<const std::byte> message) mutable {
      const auto kind = static_cast<LinkTestFrame>(message.front());
      if (kind == LinkTestFrame::pong && ++pongs == 20)
        while (alpha.wire.send(kBeta, Lane::bulk, Bytes(100'000), 0)) filled += 100'000;
      alpha.tester.on_message(kBeta, kind == LinkTestFrame::data ? Lane::bulk : Lane::control,
                              message);
    };
    return outcome({.peer = kBeta, .force = true, .time = kSecond});
  }
  std::uint64_t filled = 0;
};

TEST_F(FullWireTest, ItsTimeCountsFromTheFirstDataThatTheWireTakes) {
  const auto report = outcome_when_full(100e3);
  ASSERT_GE(filled, 100'000U * 2) << "longer than the test";
  ASSERT_TRUE(report) << report.error().text();
  for (const auto* direction : {"to_peer", "from_peer"})
    EXPECT_GT((*report)[direction]["bytes"].get<double>(), 0) << direction;
}

TEST_F(FullWireTest, WhereItTakesNoneForLongItSaysSo) {
  EXPECT_THAT(why(outcome_when_full(3e3)),
              HasSubstr("all connections of alpha are full of what it is sending: ask again "
                        "between exchanges"));
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
// Neither a peer that says what belongs to no test, nor one that asks in vain, keeps them back.
// Gamma speaks for itself: what it says of beta's test is nothing, and nobody sends for it.
}  // namespace
}  // namespace isthmus::inter

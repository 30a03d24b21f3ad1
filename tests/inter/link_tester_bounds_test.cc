// What a link test may cost others: exchanges, other tests, and peers that say what they like.
#include "tests/inter/linked_testers.h"

namespace isthmus::inter {
namespace {

using testing::HasSubstr;

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
  EXPECT_THAT(why(refused),
              HasSubstr("alpha forced a test 2 minutes ago, and may force another one in 8 "
                        "minutes"));
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
  EXPECT_THAT(why(outcome({.peer = kBeta, .force = true})),
              HasSubstr("alpha forced a test less than a minute ago, and may force another one in "
                        "10 minutes"));
}

TEST_F(LinkTesterTest, WhereAnExchangeTakesTheRateLimitAForcedTestSaysSoAndDoesNotCount) {
  alpha.exchange = beta.exchange = "outer step 3 is being exchanged";
  alpha.limit.set_rate(simulation.now(), 8000);
  alpha.limit.reserve(simulation.now(), 8000 * 200);
  const auto began = simulation.now();
  EXPECT_THAT(why(outcome({.peer = kBeta, .force = true})),
              HasSubstr("what alpha is sending takes all of its rate limit for another "
                        "199 s at least: ask again between exchanges"));
  EXPECT_LT(simulation.now() - began, 8 * kSecond) << "before beta has no patience left";
  alpha.limit.set_rate(simulation.now(), 0);
  // Of data that went beside its exchange beta does count one, whoever had no room for more.
  beta.limit.set_rate(simulation.now(), 8000);
  beta.limit.reserve(simulation.now(), 8000 * 200);
  EXPECT_THAT(why(outcome({.peer = kBeta, .force = true})),
              HasSubstr("beta ended the test: what beta is sending takes all of its rate limit"));
  EXPECT_THAT(why(outcome({.peer = kBeta, .force = true})), HasSubstr("alpha forced a test"));
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
  // A test that gamma asks of beta, has begun and ends: all in one turn of beta's loop, or after a
  // time.
  void hurry(LinkTestId id, Nanoseconds time = 0) {
    gamma.deaf = true;
    const auto say = [&](LinkTestFrame kind, const auto& write) {
      auto frame = link_test_frame(kind, id);
      write(frame);
      beta.tester.on_message(kGamma, Lane::control, std::span(frame.view()).subspan(1));
    };
    say(LinkTestFrame::ask, [](ByteWriter& out) { LinkTestAsk{.force = true}.write(out); });
    say(LinkTestFrame::send,
        [](ByteWriter& out) { LinkTestPlan{.time = kSecond, .bytes_max = 1'000'000}.write(out); });
    if (time > 0) run_for(time);
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

// What a gateway says of its end it reads from files.
TEST_F(HastyPeerTest, HasNoFilesReadForEachQuestion) {
  for (LinkTestId id = 1; id <= 2000; ++id) {
    hurry(id);
    run_for(5 * kMillisecond);
  }
  EXPECT_GE(beta.side_asked, 1);
  EXPECT_LE(beta.side_asked, 3) << "in ten seconds";
}

// It may not make use of that to have data sent beside an exchange again and again.
TEST_F(HastyPeerTest, HasForcedOneThatItEndsOnceDataHaveGone) {
  beta.exchange = "outer step 3 is being exchanged";
  const auto forced = [&](std::uint64_t number) {
    gamma.deaf = false;
    EXPECT_TRUE(ask(gamma, number, {.peer = kBeta, .force = true}));
    run_for(2 * kSecond);
    return ask(gamma, number, {});
  };
  hurry(1);
  run_for(kSecond);
  EXPECT_TRUE(forced(1)) << "nothing has gone";
  gamma.tester.stop(1);
  run_for(11 * 60 * kSecond);
  hurry(2, kMillisecond);
  run_for(kSecond);
  const auto refused = forced(2);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().text(), HasSubstr("gamma forced a test less than a minute ago"));
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

TEST_F(LinkTesterTest, OfTwoThatBeginAtTheSameMomentOneIsDone) {
  for (std::uint64_t number = 1; number <= 6; ++number) {
    ASSERT_TRUE(ask(alpha, number));
    ASSERT_TRUE(ask(beta, number, {.peer = kAlpha}));
    run_for(30 * kSecond);
    const auto of_alpha = ask(alpha, number), of_beta = ask(beta, number, {.peer = kAlpha});
    ASSERT_NE(of_alpha.has_value(), of_beta.has_value()) << why(of_alpha) << why(of_beta);
    EXPECT_EQ(nlohmann::json::parse(of_alpha ? *of_alpha : *of_beta)["state"], "done");
    EXPECT_THAT((of_alpha ? of_beta : of_alpha).error().text(), HasSubstr("ask again in a minute"));
  }
}

TEST_F(LinkTesterTest, AnObjectionHoldsEvenWhenItIsForced) {
  beta.objection = "the roster has expired";
  EXPECT_THAT(why(outcome({.peer = kBeta, .force = true})), HasSubstr("the roster has expired"));
}

TEST_F(LinkTesterTest, ItsBytesAreCountedApartAndNoCountFalls) {
  network.set_access(kBeta.site, 2.5e6);
  alpha.ignores_others = beta.ignores_others = true;
  const auto say = [&] {
    ASSERT_TRUE(alpha.wire.send(kBeta, Lane::control, Bytes(936), 0));
    run_for(100 * kMillisecond);
  };
  const auto whole = [](const TesterNode& node, GatewayId peer) {
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

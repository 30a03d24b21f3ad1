// What gateways do in situations that a seed seldom makes.
#include "tests/inter/scripted_federation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace isthmus::inter {
namespace {

bool is_member(Gateway& gateway, const std::string& site) {
  const auto members = gateway.status().members;
  return std::ranges::find(members, site) != members.end();
}

ScriptedFederation::Options with_a_third_without_vote(std::uint64_t outer_steps) {
  auto options = options_of({2 * kSecond, 2 * kSecond, 2 * kSecond});
  options.without_vote = {3};
  options.gateway.sync.outer_steps = outer_steps;
  return options;
}

// From this step on at the latest.
bool third_takes_part(ScriptedFederation& federation, std::uint64_t step) {
  auto& first = federation.gateway(1);
  return federation.run_until(
      [&] { return first.state() && first.state()->step >= step && is_member(first, "s3"); },
      300 * kSecond);
}

// ---- Ranks that are gone, or hang

class DeadRanksTest : public testing::TestWithParam<bool> {};

TEST_P(DeadRanksTest, AreNoProgressAndTheirSiteIsOutUntilTheyCompute) {
  ScriptedFederation federation(with_a_third_without_vote(1000));
  auto& first = federation.gateway(1);
  auto& third = federation.gateway(3);
  ASSERT_TRUE(third_takes_part(federation, 8));
  EXPECT_TRUE(third.computes());
  const bool hang = GetParam();
  if (hang)
    federation.ranks(3).detach();  // and the gateway is not told
  else
    federation.end_ranks(3);
  const auto before = first.counters().view_changes;
  const auto step = first.state()->step;
  ASSERT_TRUE(federation.run_until([&] { return !is_member(first, "s3"); }, 300 * kSecond));
  EXPECT_LE(first.state()->step, step + 4);
  federation.run_until([&] { return !third.computes(); }, 60 * kSecond);
  EXPECT_FALSE(third.computes());
  federation.run_for(120 * kSecond);
  EXPECT_EQ(first.counters().view_changes, before + 1);
  EXPECT_FALSE(is_member(first, "s3"));
  // The others do not wait for it any more: some three seconds a step.
  EXPECT_GT(first.state()->step, step + 30);
  EXPECT_EQ(federation.events(3, "ranks_hang"), hang ? 1U : 0U);
  EXPECT_THAT(third.status().attention,
              testing::Contains(testing::StartsWith("its ranks hang: they are connected"))
                  .Times(hang ? 1 : 0));
  const auto states = [&] {
    std::vector<std::string> all;
    for (const auto& rank : third.status().ranks) all.push_back(rank.state);
    return all;
  };
  if (hang) {
    EXPECT_THAT(states(), testing::ElementsAre(testing::StartsWith("silent for ")));
  }

  federation.ranks(3).attach(third);
  EXPECT_TRUE(federation.run_until([&] { return is_member(first, "s3"); }, 60 * kSecond));
  EXPECT_TRUE(third.computes());
  EXPECT_THAT(states(), testing::ElementsAre("computing"));
  EXPECT_EQ(federation.events(3, "ranks_hang_no_more"), hang ? 1U : 0U);
  EXPECT_EQ(federation.events(1, "ranks_hang"), 0U);
}

INSTANTIATE_TEST_SUITE_P(All, DeadRanksTest, testing::Bool(), [](const auto& chosen) {
  return std::string(chosen.param ? "hang" : "are_gone");
});

// The first voter's ranks, before they have offered their parameters: no run begins.
TEST(HangingRanks, AreToldOfBeforeTheRunBegins) {
  ScriptedFederation federation(options_of({kSecond, kSecond}));
  federation.ranks(1).hang();
  federation.run_for(50 * kMillisecond);
  auto& first = federation.gateway(1);
  ASSERT_TRUE(first.attached(federation.layout()));
  federation.run_for(660 * kSecond);
  EXPECT_EQ(first.genesis(), std::nullopt);
  EXPECT_EQ(federation.events(1, "ranks_hang"), 1U);
  EXPECT_THAT(first.status().attention,
              testing::Contains(testing::AllOf(testing::StartsWith("its ranks hang"),
                                               testing::HasSubstr("nothing goes on without"))));
}

TEST(HangingRanks, AtTheRunsEndAreNotSaidToGoOn) {
  ScriptedFederation federation(with_a_third_without_vote(80));
  ASSERT_TRUE(third_takes_part(federation, 8));
  federation.ranks(3).detach();
  ASSERT_TRUE(federation.run_until(
      [&] { return federation.gateway(3).status().phase == "finished"; }, 1000 * kSecond));
  federation.run_for(10 * kSecond);
  EXPECT_EQ(federation.events(3, "ranks_hang"), 1U);
  EXPECT_EQ(federation.events(3, "ranks_hang_no_more"), 0U);
}

// Of two sites and min_sites = 2 neither goes on alone, and both say why.
TEST(HangingRanks, WithoutWhichNothingGoesOnAreNamedEverywhere) {
  auto options = options_of({2 * kSecond, 2 * kSecond});
  options.gateway.sync.outer_steps = 800;
  options.gateway.sync.min_sites = 2;
  ScriptedFederation federation(std::move(options));
  auto& first = federation.gateway(1);
  auto& second = federation.gateway(2);
  ASSERT_TRUE(federation.run_until([&] { return first.state() && first.state()->step >= 8; },
                                   300 * kSecond));
  federation.ranks(2).detach();
  ASSERT_TRUE(
      federation.run_until([&] { return federation.events(2, "ranks_hang") > 0; }, 60 * kSecond));
  const auto step = first.state()->step;
  federation.run_for(60 * kSecond);
  EXPECT_EQ(first.state()->step, step);
  EXPECT_THAT(second.status().attention,
              testing::Contains(testing::AllOf(testing::StartsWith("its ranks hang"),
                                               testing::HasSubstr("nothing goes on without"))));
  EXPECT_THAT(first.status().attention,
              testing::Contains("it waits for s2: nothing comes of it, and an outer step is "
                                "made of min_sites = 2 contributions at least"));
  EXPECT_EQ(federation.events(1, "sites_missed"), 1U);
  federation.ranks(2).attach(second);
  ASSERT_TRUE(federation.run_until([&] { return first.state()->step > step; }, 60 * kSecond));
  federation.run_for(10 * kSecond);
  EXPECT_THAT(first.status().attention, testing::IsEmpty());
}

// ---- What is waited for

TEST(WaitsTest, ASlowSiteIsWaitedForAsAnotherSite) {
  ScriptedFederation federation(options_of({2 * kSecond, 20 * kSecond}));
  ASSERT_TRUE(federation.run_until([&] { return federation.finished(); }, 1000 * kSecond));
  const auto quick = federation.gateway(1).status().waits;
  EXPECT_GT(quick.straggler_s, 0.7 * sum_of(quick));
  EXPECT_GT(quick.computing_s, 6 * 0.7 * 2);
  EXPECT_LT(quick.computing_s, 6 * 1.3 * 2 + 2);
  EXPECT_LT(quick.transfer_s, 0.1 * sum_of(quick));
  EXPECT_LT(quick.agreement_s, 0.1 * sum_of(quick));
  EXPECT_GT(quick.agreement_s, 0);
  EXPECT_GT(quick.applying_s, 0);
  const auto slow = federation.gateway(2).status().waits;
  EXPECT_GT(slow.computing_s, 0.8 * sum_of(slow));
  // Nothing is left out, and nothing counted twice.
  EXPECT_NEAR(sum_of(quick), seconds_of(federation.now()), 3);
  EXPECT_NEAR(sum_of(slow), seconds_of(federation.now()), 3);
}

TEST(WaitsTest, ASlowLinkIsWaitedForAsTransfer) {
  auto options = options_of({2 * kSecond, 2 * kSecond});
  options.elements = 100'000;
  options.gateway.sync.chunk_elements = 4096;
  options.network.bytes_per_second = 5000;
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(federation.run_until([&] { return federation.finished(); }, 1000 * kSecond));
  for (const SiteId site : {1U, 2U}) {
    const auto waits = federation.gateway(site).status().waits;
    EXPECT_GT(waits.transfer_s, 0.6 * sum_of(waits)) << site;
    EXPECT_LT(waits.straggler_s, 0.2 * sum_of(waits)) << site;
    EXPECT_LT(waits.agreement_s, 0.2 * sum_of(waits)) << site;
  }
}

// A voter that cannot be reached is what agreement waits for, once all contributions are here.
TEST(WaitsTest, MissingVotesAreWaitedForAsAgreement) {
  ScriptedFederation federation(with_a_third_without_vote(1000));
  auto& first = federation.gateway(1);
  // The other voter's ranks leave for good, then it is cut off: no majority without it.
  ASSERT_TRUE(third_takes_part(federation, 4));
  federation.end_ranks(2);
  ASSERT_TRUE(federation.run_until([&] { return !is_member(first, "s2"); }, 600 * kSecond));
  const auto before = first.status().waits.agreement_s;
  federation.cut_off(2, true);
  federation.run_for(60 * kSecond);
  EXPECT_GT(first.status().waits.agreement_s, before + 40);
}

// ---- Farewells

// Whoever is stopped says so: the others need no silence to know that it is gone.
TEST(FarewellTest, AGatewayThatWasStoppedIsNotWaitedFor) {
  auto options = options_of({2 * kSecond, 2 * kSecond, 2 * kSecond});
  options.gateway.sync.outer_steps = 1000;
  options.network.silent_deaths = options.network.late_downs = 0;
  for (const bool founded : {true, false}) {
    if (!founded) options.late = {2};
    ScriptedFederation federation(options);
    federation.run_until([&] { return federation.gateway(1).state() != nullptr; }, 60 * kSecond);
    ASSERT_NE(federation.gateway(1).session_with(3), 0U);
    federation.gateway(3).stop();
    federation.run_for(kSecond);
    federation.kill(3);
    federation.run_for(kSecond);
    EXPECT_EQ(federation.gateway(1).session_with(3), 0U) << "founded: " << founded;
  }
}

TEST(FarewellTest, AGatewayThatWasKilledIsMissedAfterItsSilence) {
  auto options = options_of({2 * kSecond, 2 * kSecond, 2 * kSecond});
  options.gateway.sync.outer_steps = 1000;
  options.network.silent_deaths = options.network.late_downs = 0;
  ScriptedFederation federation(std::move(options));
  federation.run_until([&] { return federation.gateway(1).state() != nullptr; }, 60 * kSecond);
  federation.kill(3);
  federation.run_for(4 * kSecond);
  EXPECT_NE(federation.gateway(1).session_with(3), 0U);
  federation.run_for(6 * kSecond);
  EXPECT_EQ(federation.gateway(1).session_with(3), 0U);
}

// A chunk is averaged as soon as all members' are here, not once a record names them.
TEST(StepAheadTest, EachChunkIsSteppedWhenTheLastMemberHasBroughtIt) {
  ScriptedFederation federation(options_of({kSecond, kSecond, 2 * kSecond}));
  ASSERT_TRUE(federation.run_until([&] { return federation.finished(); }, 200 * kSecond));
  const ChunkPlan plan(federation.layout(), 0, 256, compress::CodecId::int8);
  for (SiteId site = 1; site <= 3; ++site)
    EXPECT_EQ(federation.gateway(site).counters().stepped_ahead, 6 * plan.chunks());
}

// ---- States that differ

// Its peer had all of it before it was killed.
TEST(RestartTest, WhatWasContributedBeforeIsNotSentAgain) {
  auto options = options_of({kSecond, kSecond, 60 * kSecond});
  options.gateway.sync.min_sites = 3;  // the third is waited for
  ScriptedFederation federation(std::move(options));
  const auto all_there = [&] {
    return federation.step(1) == 1 && federation.gateway(1).held().contains(1) &&
           federation.gateway(2).held().contains(1);
  };
  ASSERT_TRUE(federation.run_until(all_there, 200 * kSecond));
  federation.run_for(kSecond);
  federation.kill(1);
  federation.start(1);
  federation.run_for(5 * kSecond);
  EXPECT_EQ(federation.events(1, "own_contribution_restored"), 1U);
  for (const auto& link : federation.gateway(1).status().links) {
    EXPECT_EQ(link.state, "up");
    EXPECT_EQ(link.chunks_sent, 0U) << link.peer;
  }
}

TEST(DivergenceTest, ASiteWithoutAVoteStopsNoVoter) {
  auto options = options_of({2 * kSecond, 2 * kSecond, 2 * kSecond});
  options.without_vote = {3};
  options.gateway.sync.outer_steps = 20;
  bool broken = false;
  options.adjust = [&broken](SiteId site, GatewayOptions& own) {
    if (site == 3)
      own.disturb = [&broken](std::uint64_t, std::span<float> agreed) {
        if (broken) agreed[0] += 1;
      };
  };
  ScriptedFederation federation(std::move(options));
  auto& first = federation.gateway(1);
  auto& third = federation.gateway(3);
  ASSERT_TRUE(federation.run_until(
      [&] { return first.state() && first.state()->step >= 3 && is_member(first, "s3"); },
      300 * kSecond));
  // The site without a vote computes the next step wrongly, and the other voter is cut off before
  // it can say what it has.
  broken = true;
  const auto step = first.state()->step + 1;
  ASSERT_TRUE(federation.run_until([&] { return first.chain().size() >= step; }, 60 * kSecond));
  federation.cut_off(2, true);
  ASSERT_TRUE(federation.run_until([&] { return third.state()->step >= step; }, 60 * kSecond));
  ASSERT_NE(third.root(), first.root());
  federation.run_for(180 * kSecond);
  EXPECT_FALSE(federation.process(1).failure()) << federation.process(1).failure()->text();
  EXPECT_EQ(federation.events(1, "state_disputed"), 0U);
  broken = false;
  federation.cut_off(2, false);
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 600 * kSecond));
  EXPECT_EQ(third.root(), first.root());
}

// What a crash leaves of two states is never the wrong one alone.
TEST(DivergenceTest, ACrashWhileTheRightStateIsWrittenLeavesTheOneBefore) {
  constexpr std::uint64_t kWrong = 6;
  auto options = options_of({kSecond, kSecond});
  options.gateway.sync.outer_steps = 12;
  int computed = 0, saving = 0;
  options.adjust = [&](SiteId site, GatewayOptions& own) {
    if (site != 1) return;
    own.disturb = [&](std::uint64_t step, std::span<float> agreed) {
      if (step == kWrong && computed++ == 0) agreed[0] += 1;
    };
    own.at_point = [&](const char* point, std::uint64_t step) {
      saving += step == kWrong && point == std::string_view("saving");
    };
  };
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(federation.run_until([&] { return saving == 2; }, 300 * kSecond));
  EXPECT_EQ(federation.events(1, "state_replaced"), 1U);
  EXPECT_EQ(federation.gateway(1).saved_step(), kWrong - 1) << "the wrong one is gone";
  federation.kill(1);
  federation.start(1);
  std::optional<std::uint64_t> loaded;
  ASSERT_TRUE(federation.run_until(
      [&] {
        const auto& state = federation.gateway(1).state();
        if (state && !loaded) loaded = state->step;
        return federation.finished();
      },
      600 * kSecond));
  EXPECT_EQ(loaded, kWrong - 1);
  EXPECT_EQ(federation.events(1, "state_disputed"), 1U) << "before the crash";
  EXPECT_EQ(federation.gateway(1).root(), federation.gateway(2).root());
}

// The disk does not let the wrong state go: that is said, and tried again.
TEST(DivergenceTest, TheWrongStateGoesOnceTheDiskLetsIt) {
  constexpr std::uint64_t kWrong = 6;
  auto options = options_of({kSecond, 3 * kSecond});
  options.gateway.sync.outer_steps = 12;
  int computed = 0;
  options.adjust = [&](SiteId site, GatewayOptions& own) {
    if (site == 1)
      own.disturb = [&](std::uint64_t step, std::span<float> agreed) {
        if (step == kWrong && computed++ == 0) agreed[0] += 1;
      };
  };
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(federation.run_until([&] { return federation.gateway(1).saved_step() == kWrong; },
                                   300 * kSecond));
  federation.disk(1).set_faults({.full_for = "outer"});
  federation.run_for(10 * kSecond);
  EXPECT_GE(federation.events(1, "state_not_saved"), 2U);
  EXPECT_THAT(federation.gateway(1).status().attention,
              testing::Contains(testing::AllOf(testing::HasSubstr("cannot be saved"),
                                               testing::EndsWith("the simulated disk is full"))));
  // Its vote could not be written either, which ends a gateway.
  federation.kill(1);
  federation.disk(1).set_faults({});
  federation.start(1);
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 600 * kSecond));
  EXPECT_EQ(federation.gateway(1).root(), federation.gateway(2).root());
}

// Of two voters one computes the last step wrongly, and never hears what the other has.
TEST(DivergenceTest, WhoIsAloneAtTheEndFindsItsFault) {
  constexpr std::uint64_t kLast = 6;
  auto options = options_of({kSecond, 3 * kSecond});
  options.gateway.sync.outer_steps = kLast;
  int computed = 0;
  options.adjust = [&](SiteId site, GatewayOptions& own) {
    if (site == 1)
      own.disturb = [&](std::uint64_t step, std::span<float> agreed) {
        if (step == kLast && computed++ == 0) agreed[0] += 1;
      };
  };
  ScriptedFederation federation(std::move(options));
  const auto decided = [&](SiteId site) {
    return federation.gateway(site).chain().size() == kLast;
  };
  ASSERT_TRUE(federation.run_until([&] { return decided(1) && decided(2); }, 300 * kSecond));
  federation.cut(1, 2, true);
  ASSERT_TRUE(federation.run_until([&] { return federation.finished(); }, 100 * kSecond));
  EXPECT_EQ(federation.events(1, "state_disputed"), 0U) << "it heard of another one";
  EXPECT_EQ(federation.events(1, "state_replaced"), 1U);
  EXPECT_EQ(federation.gateway(1).root(), federation.gateway(2).root());
}

// Both compute it again, with the same result: ranks are not told what may be wrong.
TEST(DivergenceTest, TheEndIsNotToldWhileTheOtherVoterHasAnotherOne) {
  constexpr std::uint64_t kLast = 6;
  auto options = options_of({kSecond, kSecond});
  options.gateway.sync.outer_steps = kLast;
  options.adjust = [](SiteId site, GatewayOptions& own) {
    if (site == 1)
      own.disturb = [](std::uint64_t step, std::span<float> agreed) {
        if (step == kLast) agreed[0] += 1;
      };
  };
  ScriptedFederation federation(std::move(options));
  const auto failed = [&](SiteId site) { return federation.process(site).failure().has_value(); };
  EXPECT_TRUE(federation.run_until([&] { return failed(1) || failed(2); }, 300 * kSecond));
  for (const SiteId site : {1, 2}) EXPECT_FALSE(federation.gateway(site).told_the_end()) << site;
}

// ---- A slow line

// A chunk takes longer than whoever lacks it waits before it asks again.
TEST(SlowLinkTest, ALowRateLimitIsSlowAndNoMore) {
  auto options = options_of({2 * kSecond, 2 * kSecond, 2 * kSecond});
  options.elements = 150'000;
  options.gateway.sync.outer_steps = 3;
  options.gateway.sync.chunk_elements = 1 << 16;
  options.gateway.rate_limit_bytes_per_second = 4000;
  ScriptedFederation federation(std::move(options));
  // 2 x 150 kB from each site: 75 s a step, and more than is waited for at first.
  ASSERT_TRUE(federation.run_until([&] { return federation.finished(); }, 300 * kSecond));
  for (const SiteId site : {1U, 2U, 3U}) {
    EXPECT_EQ(federation.gateway(site).counters().unnamed, 0U) << site;
    EXPECT_EQ(federation.events(site, "ballot_opened"), 0U) << site;
  }
}

TEST(SlowLinkTest, AHigherRateLimitHoldsAtOnceForAllThatTheGatewaySends) {
  auto options = options_of({2 * kSecond, 2 * kSecond});
  options.elements = 150'000;
  options.gateway.sync.outer_steps = 3;
  options.gateway.rate_limit_bytes_per_second = 4000;
  ScriptedFederation federation(std::move(options));
  federation.run_for(10 * kSecond);
  ASSERT_FALSE(federation.finished());
  for (const SiteId site : {1U, 2U}) federation.gateway(site).set_rate_limit(1e6);
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 60 * kSecond));
}

// ---- The end

// One that is no member any more, and comes back when the others are through.
TEST(EndTest, WhoeverCanBeReachedIsServed) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.late = {3};
  options.without_vote = {3};
  options.elements = 200'000;
  options.gateway.sync.chunk_elements = 1 << 16;
  options.network.bytes_per_second = 20'000;
  ScriptedFederation federation(std::move(options));
  auto& first = federation.gateway(1);
  ASSERT_TRUE(federation.run_until([&] { return first.state() && first.state()->step == 6; },
                                   600 * kSecond));
  federation.start(3);
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 600 * kSecond));
  EXPECT_EQ(federation.gateway(3).state()->step, 6U);
}

// ---- What ranks give

class RanksTest : public testing::Test {
 protected:
  RanksTest() : federation_(options_of({kSecond, kSecond})) {
    federation_.run_until([&] { return first().state() != nullptr; }, 60 * kSecond);
  }
  Gateway& first() { return federation_.gateway(1); }
  ScriptedFederation federation_;
};

TEST_F(RanksTest, MoreTokensThanARecordCanNameAreRefused) {
  ASSERT_TRUE(first().state());
  const auto parameters =
      std::make_shared<ValuesInVector>(std::vector<float>(federation_.layout().elements()));
  const auto contribute = [&](std::uint64_t tokens) {
    return first().contribute(first().state()->step + 1, parameters, tokens);
  };
  for (const auto tokens : {kTokensMax + 1, ~std::uint64_t{0}}) {
    const auto refused = contribute(tokens);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
  }
  EXPECT_TRUE(
      federation_.run_until([&] { return contribute(kTokensMax).has_value(); }, 60 * kSecond));
  EXPECT_TRUE(federation_.run_until([&] { return federation_.finished(); }, 1000 * kSecond));
}

TEST_F(RanksTest, FragmentsThatNobodyExchangesAreRefused) {
  const auto layout = *ModelLayout::make({{"a", Shape{1000}, 0}, {"b", Shape{1000}, 1}});
  const auto refused = first().attached(layout);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
  EXPECT_THAT(refused.error().text(), testing::HasSubstr("b is of fragment 1"));
}

// As after a mistake with mounts: the folder of another site is no lost vote.
TEST(RunFolderTest, ThatOfAnotherSiteIsRefusedByName) {
  ScriptedFederation federation(options_of({kSecond, kSecond, kSecond}));
  ASSERT_TRUE(federation.run_until(
      [&] { return federation.gateway(1).saved_step() >= 2 && federation.gateway(2).state(); },
      60 * kSecond));
  federation.kill(1);
  federation.kill(2);
  federation.swap_disks(1, 2);
  federation.start(1);
  ASSERT_TRUE(federation.run_until([&] { return federation.process(1).ended(); }, 60 * kSecond));
  ASSERT_TRUE(federation.process(1).failure());
  EXPECT_EQ(federation.process(1).failure()->code, ErrorCode::mismatch);
  EXPECT_THAT(federation.process(1).failure()->text(),
              testing::HasSubstr("run_dir of site s2: its vote file is that site's"));
}

TEST(FoundingTest, NoRunBeginsWithParametersThatAreNotFinite) {
  ScriptedFederation federation(options_of({kSecond, kSecond}));
  auto& first = federation.gateway(1);
  LargeVector<float> parameters(federation.layout().elements(), 1.0f);
  parameters[77] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_TRUE(first.attached(federation.layout()));
  first.offer_initial(std::move(parameters));
  EXPECT_TRUE(federation.run_until([&] { return federation.ranks(1).refused(); }, 60 * kSecond));
  EXPECT_EQ(first.genesis(), std::nullopt);
}

}  // namespace
}  // namespace isthmus::inter

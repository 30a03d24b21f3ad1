// What the sites that are there do while others are away, for long or for good, and what was said
// before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include "tests/inter/scripted_federation.h"

namespace isthmus::inter {
namespace {

constexpr Nanoseconds kHour = 3600 * kSecond;

// What a majority has saved is let go, also by who does not see that majority.
TEST(NarrowTest, WhatIsSavedIsLetGo) {
  auto options = options_of({2 * kSecond, 2 * kSecond, 2 * kSecond, 2 * kSecond});
  options.without_vote = {2, 4};
  options.gateway.sync.outer_steps = 1000;
  ScriptedFederation federation(std::move(options));
  federation.cut(1, 3, true);  // the voters
  federation.cut(1, 4, true);
  federation.cut(2, 4, true);
  const auto held_after = [&](std::uint64_t steps) {
    EXPECT_TRUE(federation.run_until(
        [&] {
          return federation.gateway(4).state() && federation.gateway(4).state()->step >= steps;
        },
        kHour));
    std::vector<std::uint64_t> bytes;
    for (SiteId site = 1; site <= 4; ++site)
      bytes.push_back(federation.gateway(site).memory_bytes());
    return bytes;
  };
  const auto early = held_after(20);
  const auto late = held_after(60);
  for (std::size_t i = 0; i < early.size(); ++i)
    EXPECT_LT(late[i], 2 * early[i]) << "site " << i + 1;
}

class AwayTest : public testing::TestWithParam<int> {};

// Each opened ballots by itself all the time: what the other said before does not drown what it
// says now.
TEST_P(AwayTest, VotersThatSeeEachOtherThroughAThirdAgreeAgain) {
  auto options = options_of({2 * kSecond, 2 * kSecond, 2 * kSecond});
  options.without_vote = {2};
  options.gateway.sync.outer_steps = 1000;
  ScriptedFederation federation(std::move(options));
  federation.cut(1, 3, true);
  auto& first = federation.gateway(1);
  ASSERT_TRUE(federation.run_until([&] { return first.state() && first.state()->step >= 4; },
                                   600 * kSecond));
  federation.cut_off(3, true);
  federation.run_for(GetParam() * 60 * kSecond);
  const auto step = first.state()->step;
  federation.cut(2, 3, false);
  EXPECT_TRUE(federation.run_until([&] { return first.state()->step > step + 3; }, 600 * kSecond));
}

INSTANTIATE_TEST_SUITE_P(Minutes, AwayTest, testing::Values(1, 30, 120));

ScriptedFederation::Options three_sites(std::uint32_t min_sites) {
  auto options = options_of({2 * kSecond, 2 * kSecond, 2 * kSecond});
  options.gateway.sync.outer_steps = 1000;
  options.gateway.sync.absent_steps = 3;
  options.gateway.sync.min_sites = min_sites;
  return options;
}

class ComebackTest : public testing::TestWithParam<std::uint32_t> {};

// A majority of the voters goes on, whoever was a member when the others were lost.
TEST_P(ComebackTest, WhoWasDroppedTakesThePlaceOfWhoIsLost) {
  ScriptedFederation federation(three_sites(GetParam()));
  auto& second = federation.gateway(2);
  auto& third = federation.gateway(3);
  ASSERT_TRUE(
      federation.run_until([&] { return third.state() && third.state()->step >= 4; }, kHour));
  federation.cut_off(2, true);
  ASSERT_TRUE(federation.run_until([&] { return !third.view().is_member(2); }, kHour));
  federation.kill(1);
  federation.cut_off(2, false);
  const auto step = third.state()->step;
  EXPECT_TRUE(federation.run_until([&] { return second.state()->step >= step + 5; }, kHour));
  EXPECT_TRUE(second.view().is_member(2));
  EXPECT_LE(federation.events(3, "ballot_opened"), 30U);
}

// Also when it came in vain before, for which it would wait for some steps.
TEST(VainComebackTest, WhoCameInVainTakesThePlaceOfWhoIsLost) {
  auto options = options_of({2 * kSecond, 2 * kSecond, 20 * kSecond});
  options.gateway.sync.min_sites = 2;
  options.gateway.sync.outer_steps = 1000;
  ScriptedFederation federation(std::move(options));
  const auto members = [&] { return federation.gateway(1).status().members.size(); };
  ASSERT_TRUE(federation.run_until([&] { return federation.step(1) >= 2; }, 600 * kSecond));
  federation.kill(3);
  ASSERT_TRUE(federation.run_until([&] { return members() == 2; }, 600 * kSecond));
  federation.start(3);
  ASSERT_TRUE(federation.run_until([&] { return members() == 3; }, 600 * kSecond));
  federation.kill(3);
  ASSERT_TRUE(federation.run_until([&] { return members() == 2; }, 600 * kSecond));
  federation.kill(2);
  federation.start(3);
  const auto step = federation.step(1);
  EXPECT_TRUE(federation.run_until([&] { return federation.step(1) > step + 3; }, 600 * kSecond));
}

TEST(LastMemberTest, WhoWasDroppedGoesOnWithoutIt) {
  ScriptedFederation federation(three_sites(1));
  auto& first = federation.gateway(1);
  auto& third = federation.gateway(3);
  ASSERT_TRUE(
      federation.run_until([&] { return first.state() && first.state()->step >= 4; }, kHour));
  federation.end_ranks(2);
  federation.end_ranks(3);
  ASSERT_TRUE(
      federation.run_until([&] { return first.view().members == std::vector<SiteId>{1}; }, kHour));
  federation.run_for(20 * kSecond);
  federation.kill(1);
  federation.run_for(10 * kSecond);
  federation.ranks(2).attach(federation.gateway(2));
  federation.ranks(3).attach(third);
  const auto step = third.state()->step;
  EXPECT_TRUE(federation.run_until([&] { return third.state()->step >= step + 5; }, kHour));
}

INSTANTIATE_TEST_SUITE_P(MinSites, ComebackTest, testing::Values(1, 2));

class SettingsTest : public testing::TestWithParam<std::pair<int, int>> {};

// The number of steps may change when all sites are started again, also while one has voted.
TEST_P(SettingsTest, ChangeWhileAStepIsVotedOn) {
  const auto [before, after] = GetParam();
  auto options = options_of({2 * kSecond, 2 * kSecond});
  options.gateway.sync.outer_steps = static_cast<std::uint64_t>(before);
  bool voted = false;
  options.adjust = [&](SiteId site, GatewayOptions& of_site) {
    if (site == 1)
      of_site.at_point = [&](const char* point, std::uint64_t step) {
        voted |= step == 4 && point == std::string_view("between_vote_and_accept");
      };
  };
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(federation.run_until([&] { return voted; }, 600 * kSecond));
  federation.kill(1);
  federation.kill(2);
  federation.change([&](GatewayOptions& all) {
    all.sync.outer_steps = static_cast<std::uint64_t>(after);
    all.sync.min_sites = 2;
  });
  federation.start(1);
  federation.start(2);
  const auto step = [&](SiteId site) { return federation.step(site); };
  EXPECT_TRUE(federation.run_until([&] { return step(1) >= 4 && step(2) >= 4; }, 300 * kSecond));
}

INSTANTIATE_TEST_SUITE_P(Steps, SettingsTest,
                         testing::Values(std::pair(20, 30), std::pair(20, 4), std::pair(4, 20)));

// Past its first steps, and far from its end; null: it did not come so far.
std::unique_ptr<ScriptedFederation> under_way(std::size_t sites) {
  auto options = options_of(std::vector<Nanoseconds>(sites, 2 * kSecond));
  options.gateway.sync.outer_steps = 1000;
  auto federation = std::make_unique<ScriptedFederation>(std::move(options));
  const auto& first = federation->gateway(1);
  const bool got_there =
      federation->run_until([&] { return first.state() && first.state()->step >= 3; }, kHour);
  return got_there ? std::move(federation) : nullptr;
}

TEST(MissedSitesTest, AreNamedWhenNothingGoesOnWithoutThem) {
  const auto running = under_way(3);
  ASSERT_TRUE(running);
  auto& federation = *running;
  const auto& first = federation.gateway(1);
  federation.cut_off(2, true);
  federation.run_for(60 * kSecond);
  EXPECT_EQ(federation.events(1, "sites_missed"), 0U);  // two of three go on
  federation.cut_off(3, true);
  federation.run_for(60 * kSecond);
  EXPECT_EQ(federation.events(1, "sites_missed"), 1U);
  EXPECT_THAT(first.status().attention,
              testing::Contains(testing::StartsWith("it waits for s2 or s3: no outer step")));
  federation.cut_off(2, false);
  federation.run_for(60 * kSecond);
  EXPECT_EQ(federation.events(1, "sites_are_back"), 1U);
  EXPECT_TRUE(first.status().attention.empty());
}

// Nobody else can see to it: of two voters neither is a majority.
TEST(MissedSitesTest, WhoLostAVoteThatAllNeedIsNamedAtAll) {
  const auto running = under_way(2);
  ASSERT_TRUE(running);
  auto& federation = *running;
  federation.kill(2);
  federation.disk(2).wipe();
  federation.start(2);
  federation.run_for(60 * kSecond);
  for (const SiteId site : {1, 2})
    EXPECT_THAT(federation.gateway(site).status().attention,
                testing::ElementsAre(testing::AllOf(
                    testing::StartsWith(site == 1 ? "s2 lost its vote" : "this site lost its vote"),
                    testing::EndsWith("(isthmus roster recover)"))))
        << site;
  // What the step at hand waits for is the record that names the new file, and no contribution.
  for (const SiteId site : {1, 2})
    EXPECT_THAT(federation.gateway(site).status().deadline,
                testing::AllOf(testing::StartsWith(site == 1 ? "s2, " : "this site, "),
                               testing::HasSubstr("it lost its vote file, and contributes from the "
                                                  "step after the record that names")))
        << site;
  EXPECT_EQ(federation.events(1, "votes_lost"), 1U);
  EXPECT_EQ(federation.events(2, "votes_lost"), 0U);
  EXPECT_EQ(federation.events(2, "vote_file_lost"), 1U);
}

// Of two, who lost its own tells of the other one's too.
TEST(MissedSitesTest, SeveralThatLostTheirVotesAreNamedTogether) {
  const auto running = under_way(3);
  ASSERT_TRUE(running);
  auto& federation = *running;
  for (const SiteId site : {2, 3}) federation.kill(site);
  for (const SiteId site : {2, 3}) {
    federation.disk(site).wipe();
    federation.start(site);
  }
  federation.run_for(60 * kSecond);
  for (const SiteId site : {1, 2, 3}) {
    const auto* names = site == 1   ? "s2 and s3"
                        : site == 2 ? "this site and s3"
                                    : "s2 and this site";
    EXPECT_THAT(federation.gateway(site).status().attention,
                testing::ElementsAre(
                    std::string(names) +
                    " lost their vote files (or run_dir is another folder than before), and no "
                    "record is decided without them: the operator says where to go on (isthmus "
                    "roster recover)"))
        << site;
    EXPECT_GE(federation.events(site, "votes_lost"), 1U) << site;
  }
}

// Of three the others see to it.
TEST(MissedSitesTest, WhoLostAVoteIsReadmittedByTheOthers) {
  const auto running = under_way(3);
  ASSERT_TRUE(running);
  auto& federation = *running;
  federation.kill(2);
  federation.disk(2).wipe();
  federation.start(2);
  federation.run_for(60 * kSecond);
  EXPECT_EQ(federation.events(2, "vote_readmitted"), 1U);
  for (const SiteId site : {1, 2, 3}) {
    EXPECT_TRUE(federation.gateway(site).status().attention.empty()) << site;
    EXPECT_EQ(federation.events(site, "votes_lost"), 0U) << site;
  }
}

// A site is taken out while the others are started again one after the other: those that still have
// the older roster see it, whoever has the newer one must not wait for it.
TEST(RemovedSiteTest, IsNotWaitedForThoughOthersStillSeeIt) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.without_vote = {2, 3};
  options.gateway.sync.outer_steps = 40;
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(federation.run_until(
      [&] { return federation.gateway(1).state() && federation.gateway(1).state()->step >= 2; },
      60 * kSecond));
  auto newer = federation.roster();
  newer.epoch += 1;
  newer.digest = security::blake2b(bytes_of("without the third"));
  const auto& third = newer.sites.back();
  newer.former.push_back({.id = third.id, .name = third.name, .identity = third.identity});
  newer.sites.pop_back();
  federation.end_ranks(3);
  for (const SiteId site : {1, 2}) {
    federation.kill(site);
    federation.give_roster(site, newer);
    federation.start(site);
    const auto began = federation.gateway(site).chain().size();
    EXPECT_TRUE(federation.run_until(
        [&] { return federation.gateway(site).chain().size() >= began + 2; }, 60 * kSecond))
        << "site " << site;
  }
  for (const SiteId site : {1, 2})
    EXPECT_TRUE(federation.run_until(
        [&] {
          return federation.gateway(site).state() && federation.gateway(site).state()->step == 40;
        },
        600 * kSecond))
        << "site " << site;
  EXPECT_EQ(federation.gateway(1).root(), federation.gateway(2).root());
}

// Its word that it would like to join in a step comes when the others have voted in it already.
TEST(ShortStepsTest, KeepNobodyOut) {
  auto options = options_of({5 * kMillisecond, 5 * kMillisecond});
  options.gateway.sync.outer_steps = 100'000;
  ScriptedFederation federation(std::move(options));
  const auto member = [&] { return federation.gateway(1).view().is_member(2); };
  ASSERT_TRUE(federation.run_until(
      [&] { return federation.gateway(1).state() && federation.gateway(1).state()->step >= 4; },
      60 * kSecond));
  federation.end_ranks(2);
  ASSERT_TRUE(federation.run_until([&] { return !member(); }, 200 * kSecond));
  federation.run_for(5 * kSecond);
  federation.ranks(2).attach(federation.gateway(2));
  EXPECT_TRUE(federation.run_until(member, 30 * kSecond));
}

// A joiner whose word takes half of a step of the others to come.
class FarAwayTest : public testing::TestWithParam<int> {};
TEST_P(FarAwayTest, JoinsAlthoughStepsAreShort) {
  auto options = options_of({kSecond, kSecond});
  options.network.delay = GetParam() * kMillisecond;
  options.without_vote = {2};  // what it says comes when the only voter is a step ahead
  options.gateway.sync.outer_steps = 100'000;
  ScriptedFederation federation(std::move(options));
  const auto member = [&] { return federation.gateway(1).view().is_member(2); };
  ASSERT_TRUE(federation.run_until(
      [&] { return federation.gateway(1).state() && federation.gateway(1).state()->step >= 4; },
      600 * kSecond));
  federation.end_ranks(2);
  ASSERT_TRUE(federation.run_until([&] { return !member(); }, 2000 * kSecond));
  federation.run_for(5 * kSecond);
  federation.ranks(2).attach(federation.gateway(2));
  EXPECT_TRUE(federation.run_until(member, 300 * kSecond));
}

INSTANTIATE_TEST_SUITE_P(Milliseconds, FarAwayTest, testing::Values(100, 250));

// Records know of a contribution whose feedback is lost: the ranks do not make it again.
TEST(LostFeedbackTest, TheRanksAreToldWhatTheRecordsName) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.gateway.sync.outer_steps = 1000;
  ScriptedFederation federation(std::move(options));
  const auto reaches = [&](SiteId site, std::uint64_t step) {
    return federation.run_until(
        [&, site, step] {
          const auto& state = federation.gateway(site).state();
          return state && state->step >= step;
        },
        300 * kSecond);
  };
  ASSERT_TRUE(reaches(2, 5));
  federation.kill(2);
  const auto decided = federation.gateway(1).state()->step;
  for (const auto* lost : {"outer/feedback.0", "outer/feedback.1"}) federation.disk(2).lose(lost);
  federation.start(2);
  std::uint64_t told = decided;
  ASSERT_TRUE(federation.run_until(
      [&] {
        told = std::min(told, federation.ranks(2).kept_contribution());
        const auto& state = federation.gateway(2).state();
        return state && state->step >= decided + 2;
      },
      300 * kSecond));
  EXPECT_GE(told, 4U);
}

// What a site saved reaches its peers over their own lines with it. One whose line broke before it
// heard that is told by those that still see both.
TEST(LostSightTest, WhatTheOtherSavedIsPassedOn) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.puppets = {3};
  options.without_vote = {3};
  options.gateway.sync.outer_steps = 1000;
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(3);
  std::vector<SiteId> sees = {1, 2};
  int of_2_from_1 = 0;
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    if (type == MessageType::status) {
      Status mine;
      mine.sees = sees;
      from.send(encode(mine));
    } else if (const auto message = decode_signed(type, in);
               message && type == MessageType::saved && message->signer == 2 &&
               &from == &puppet.link(1)) {
      ++of_2_from_1;
    }
  };
  const auto saved = [&] {
    return federation.gateway(1).state() && federation.gateway(1).state()->step >= 3;
  };
  ASSERT_TRUE(federation.run_until(saved, 60 * kSecond));
  EXPECT_EQ(of_2_from_1, 0);
  federation.cut(1, 2, true);  // nothing new comes of 2
  federation.run_for(kSecond);
  EXPECT_EQ(of_2_from_1, 0);
  sees = {1};
  federation.run_for(3 * kSecond);
  EXPECT_GT(of_2_from_1, 0);
}

// What ranks have handed over is made and kept without them: their site waits for that, and so do
// others.
class RanksGoneTest : public testing::TestWithParam<SiteId> {};

TEST_P(RanksGoneTest, WhatTheyGaveIsWaitedFor) {
  const auto voter = GetParam();
  auto options = options_of({kSecond, 4 * kSecond});
  options.without_vote = {3 - voter};
  options.gateway.sync.outer_steps = 100;
  ScriptedFederation federation(std::move(options));
  auto& second = federation.gateway(2);
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 8; }, 120 * kSecond));
  ASSERT_TRUE(federation.run_until(
      [&] { return second.status().phase == "exchanging" && second.held().contains(1); },
      20 * kSecond));
  const auto step = federation.step(2) + 1;
  federation.disk(2).set_speed({.sync = 20 * kSecond});
  federation.end_ranks(2);
  const auto ballots = federation.events(voter, "ballot_opened");
  federation.run_for(10 * kSecond);
  ASSERT_FALSE(second.held().contains(2)) << "it is made before anybody waits for it";
  EXPECT_EQ(federation.events(voter, "ballot_opened"), ballots);
  ASSERT_TRUE(federation.run_until([&] { return federation.step(1) >= step; }, 300 * kSecond));
  EXPECT_NE(federation.gateway(1).chain()[step - 1].record.part_of(2), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Voters, RanksGoneTest, testing::Values(1, 2), [](const auto& tested) {
  return tested.param == 1 ? "OfOthers" : "OfTheVoter";
});

// Of two voters one holds a wrong state, and finds its fault once it hears of the other's. Who does
// not see it meanwhile does not give up.
class DisputeTest : public testing::TestWithParam<bool> {};

TEST_P(DisputeTest, WaitsForWhoIsOutOfSight) {
  const bool out_of_sight = GetParam();
  auto options = options_of({100'000 * kSecond, kSecond});
  options.puppets = {2};
  options.gateway.sync.min_sites = 2;
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(2);
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    if (type == MessageType::status) {
      Status mine;
      mine.vote_file = 77;
      from.send(encode(mine));
    }
    if (type != MessageType::accept) return;
    const auto message = decode_signed(type, in);
    const auto ballot = message ? decode_ballot(type, message->body) : std::nullopt;
    if (ballot && ballot->id.step == 0)
      from.send(sign(puppet.signer, 2, ballot->id, std::get<Accept>(ballot->ballot)).encode());
  };
  const auto begun = [&] { return federation.gateway(1).state() != nullptr; };
  const auto failed = [&] { return federation.process(1).failure().has_value(); };
  ASSERT_TRUE(federation.run_until(begun, 60 * kSecond));
  Saved saved;
  saved.id.run = federation.gateway(1).genesis()->record.hash();
  saved.state_root.bytes[0] = std::byte{1};  // another one
  puppet.link(1).send(sign(puppet.signer, 2, MessageType::saved, encode(saved)).encode());
  federation.run_for(5 * kSecond);
  EXPECT_GT(federation.events(1, "state_disputed"), 0U);
  EXPECT_FALSE(failed());
  if (out_of_sight) federation.cut(1, 2, true);
  EXPECT_EQ(federation.run_until(failed, 300 * kSecond), !out_of_sight);
}

// Who found its fault says so, also to whom it does not see.
TEST(DisputeOutOfSightTest, EndsWhenWhoWasWrongHasFoundItsFault) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.without_vote = {2};
  options.gateway.sync.min_sites = 3;
  std::map<SiteId, int> computed;  // how often, the last step
  options.adjust = [&](SiteId site, GatewayOptions& own) {
    own.disturb = [&, site](std::uint64_t step, std::span<float> agreed) {
      if (step == 6 && computed[site]++ == 0 && site != 2) agreed[0] += static_cast<float>(site);
    };
  };
  ScriptedFederation federation(std::move(options));
  federation.cut(1, 3, true);
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 600 * kSecond));
  for (const SiteId site : {1, 3})
    EXPECT_EQ(federation.events(site, "state_replaced"), 1U) << site << ", computed again";
  EXPECT_LE(federation.events(3, "state_disputed"), 2U) << "not once a second";
  EXPECT_EQ(federation.gateway(1).root(), federation.gateway(3).root());
}

INSTANTIATE_TEST_SUITE_P(Sight, DisputeTest, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "OutOf" : "In"; });

class WipedSiteTest : public testing::TestWithParam<bool> {};

// What a site contributed before it lost its disk may be with who is no member, and asks to be one;
// the site may not even see that one. It contributes from the step after the record that names its
// new disk.
TEST_P(WipedSiteTest, DoesNotContributeAgainToTheStep) {
  const bool out_of_sight = GetParam();
  auto options = options_of({12 * kSecond, 2 * kSecond, 5 * kSecond});
  options.without_vote = {2, 3};
  options.gateway.sync.outer_steps = 12;
  ScriptedFederation federation(std::move(options));
  const auto state = [&](SiteId site) { return federation.gateway(site).state(); };
  const auto until = [&](const std::function<bool()>& condition) {
    return federation.run_until(condition, 120 * kSecond);
  };
  ASSERT_TRUE(until([&] { return state(3) && state(3)->step >= 2; }));
  federation.kill(2);
  ASSERT_TRUE(until([&] { return !federation.gateway(3).view().is_member(2); }));
  const auto step = state(3)->step;
  ASSERT_TRUE(until([&] { return state(1)->step > step && state(3)->step > step; }));
  const auto last = state(3)->step;
  federation.kill(1);  // the voter: nothing is decided any more
  federation.ranks(1).restart();
  federation.start(2);
  ASSERT_TRUE(until([&] {
    return state(2) && state(2)->step == last && federation.gateway(2).held().contains(3);
  }));
  const auto first = federation.gateway(2).held().at(3);
  const auto old_disk = federation.gateway(2).view().vote_file_of(3);
  federation.kill(3);
  federation.disk(3).wipe();
  if (out_of_sight) federation.cut(2, 3, true);
  federation.start(3);
  federation.start(1);
  ASSERT_TRUE(until([&] {
    const auto held = federation.gateway(1).held();
    if (state(1) && state(1)->step == last && held.contains(3)) {
      EXPECT_EQ(held.at(3), first);
    }
    return state(1) && state(1)->step > last;
  }));
  EXPECT_EQ(state(1)->step, last + 1);
  EXPECT_NE(federation.gateway(1).view().vote_file_of(3), old_disk);
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 300 * kSecond));
  EXPECT_NE(federation.gateway(1).chain().at(last + 1).record.part_of(3), nullptr);
  for (const SiteId site : {1, 2, 3}) EXPECT_EQ(federation.events(site, "two_contributions"), 0U);
}

INSTANTIATE_TEST_SUITE_P(Sight, WipedSiteTest, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "OutOf" : "In"; });

}  // namespace
}  // namespace isthmus::inter

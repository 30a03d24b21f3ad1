// How a run begins: with all its voters, once, whoever has a newer roster or says that there is
// one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "inter/record.h"
#include "inter/sim/simulated_keys.h"
#include "tests/inter/scripted_federation.h"

namespace isthmus::inter {
namespace {

// It may have begun with the vote of a site that does not know it yet, and gets a newer roster.
TEST(FoundingTest, WhoVotedForARunJoinsItWithANewerRoster) {
  ScriptedFederation federation(options_of({kSecond, kSecond, kSecond}));
  federation.cut(2, 3, true);
  ASSERT_TRUE(federation.run_until([&] { return federation.gateway(1).genesis().has_value(); },
                                   60 * kSecond));
  ASSERT_FALSE(federation.gateway(2).genesis());
  federation.kill(2);
  federation.cut(2, 3, false);
  federation.give_roster(2, federation.newer_roster({2, 3}));
  federation.start(2);
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 600 * kSecond));
  EXPECT_EQ(federation.gateway(2).root(), federation.gateway(1).root());
  EXPECT_EQ(federation.events(2, "founding_stuck"), 0U);
}

// While nobody says that it began it waits, says so, and founds no other run.
TEST(FoundingTest, WhoVotedForARunFoundsNoOtherOne) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.puppets = {3};
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(3);
  bool voted = false;
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    if (type == MessageType::status) {
      Status mine;
      mine.vote_file = 77;
      from.send(encode(mine));
    }
    const auto message = decode_signed(type, in);
    // Itself: site 1 may pass on, now and later, what it said under its first roster.
    voted |=
        type == MessageType::accept && message && message->signer == 2 && from.peer().site == 2;
  };
  ASSERT_TRUE(federation.run_until([&] { return voted; }, 60 * kSecond));
  federation.kill(2);
  federation.give_roster(2, federation.newer_roster({2, 3}));
  federation.start(2);
  voted = false;
  federation.run_for(60 * kSecond);
  EXPECT_FALSE(voted) << "under the newer roster";
  EXPECT_FALSE(federation.gateway(2).genesis());
  EXPECT_FALSE(federation.process(2).failure());
  EXPECT_GE(federation.events(2, "founding_stuck"), 1U);
  EXPECT_THAT(federation.gateway(2).status().attention,
              testing::ElementsAre(testing::HasSubstr("older roster")));
}

// A site whose roster has another voter takes no run of before for its own, and says which.
TEST(FoundingTest, ARunThatIsNotItsOwnIsNamed) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.without_vote = {3};
  options.late = {3};
  options.gateway.sync.outer_steps = 1000;
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(federation.run_until([&] { return federation.step(1) >= 2; }, 60 * kSecond));
  federation.give_roster(3, federation.newer_roster({1, 2, 3}));
  federation.start(3);
  federation.run_for(60 * kSecond);
  EXPECT_FALSE(federation.gateway(3).genesis());
  EXPECT_THAT(federation.gateway(3).status().attention,
              testing::Contains(testing::AllOf(testing::HasSubstr(" knows a run "),
                                               testing::HasSubstr("--run"))));
}

TEST(FoundingTest, WhoIsMissingIsNamedAndWaitedFor) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.late = {3};
  ScriptedFederation federation(std::move(options));
  federation.run_for(200 * kSecond);
  EXPECT_EQ(federation.gateway(1).genesis(), std::nullopt);
  EXPECT_EQ(federation.events(1, "sites_missed"), 2U);
  const auto waiting = federation.gateway(1).status();
  EXPECT_GT(waiting.waits.straggler_s, 0.9 * sum_of(waiting.waits));
  EXPECT_THAT(waiting.attention,
              testing::ElementsAre(testing::StartsWith(
                  "it waits for s3: a run begins when all its voters are here")));
  federation.start(3);
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 600 * kSecond));
  EXPECT_TRUE(federation.gateway(1).status().attention.empty());
}

TEST(FoundingTest, WhereEitherOfTwoWouldDoBothAreNamedSo) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.without_vote = options.late = {2, 3};
  options.gateway.sync.min_sites = 2;
  ScriptedFederation federation(std::move(options));
  federation.run_for(10 * kSecond);
  EXPECT_THAT(federation.gateway(1).status().attention,
              testing::ElementsAre("it waits for s2 or s3: a run begins with min_sites = 2"));
}

// --- The only voter has lost its disk, and others have the run

ScriptedFederation::Options with_one_voter() {
  auto options = options_of({kSecond, kSecond});
  options.without_vote = {2};
  options.gateway.sync.outer_steps = 1000;
  return options;
}

TEST(SecondRunTest, IsNotFoundedWhileAPeerThatIsUpHasOne) {
  for (const auto delay : {kMillisecond, 400 * kMillisecond})
    for (const std::uint32_t min_sites : {1, 2}) {
      auto options = with_one_voter();
      options.network.delay = delay;
      options.gateway.sync.min_sites = min_sites;
      ScriptedFederation federation(std::move(options));
      ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 3; }, 120 * kSecond));
      federation.kill(1);
      federation.disk(1).wipe();
      federation.start(1);
      ASSERT_TRUE(federation.run_until([&] { return federation.gateway(1).genesis().has_value(); },
                                       60 * kSecond));
      EXPECT_EQ(federation.gateway(1).genesis()->record.hash(),
                federation.gateway(2).genesis()->record.hash());
      // Where it goes on the operator says.
      ASSERT_TRUE(federation.run_until(
          [&] { return federation.gateway(1).state() && federation.step(1) == federation.step(2); },
          60 * kSecond));
      federation.run_for(kSecond);
      EXPECT_THAT(federation.gateway(1).status().attention,
                  testing::Contains(testing::HasSubstr("isthmus roster recover")));
    }
}

// Nor while one may yet come.
TEST(SecondRunTest, IsNotFoundedBeforeOthersHadTheTimeToCome) {
  ScriptedFederation federation(with_one_voter());
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 3; }, 60 * kSecond));
  for (const SiteId site : {1, 2}) federation.kill(site);
  federation.disk(1).wipe();
  federation.start(1);
  federation.run_for(15 * kSecond);
  ASSERT_FALSE(federation.gateway(1).genesis());
  EXPECT_THAT(federation.gateway(1).status().attention,
              testing::ElementsAre("it waits for s2, 20 s at most: a site that was here before may "
                                   "have a run already"));
  federation.start(2);
  ASSERT_TRUE(federation.run_until([&] { return federation.gateway(1).genesis().has_value(); },
                                   60 * kSecond));
  EXPECT_EQ(federation.gateway(1).genesis()->record.hash(),
            federation.gateway(2).genesis()->record.hash());
}

// Nor is it voted for while the first one goes to a slow disk.
TEST(SecondRunTest, IsNotVotedForWhileTheFirstOneIsWritten) {
  ScriptedFederation federation(with_one_voter());
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 3; }, 120 * kSecond));
  federation.kill(1);
  federation.disk(1).wipe();
  federation.cut(1, 2, true);
  federation.start(1);
  federation.run_for(5 * kSecond);
  federation.disk(1).set_speed({.sync = 100 * kSecond});
  federation.cut(1, 2, false);
  federation.run_for(130 * kSecond);
  ASSERT_FALSE(federation.gateway(1).genesis()) << "it is on the disk already";
  federation.disk(1).set_speed({});
  ASSERT_TRUE(federation.run_until([&] { return federation.gateway(1).genesis().has_value(); },
                                   600 * kSecond));
  EXPECT_EQ(federation.gateway(1).genesis()->record.hash(),
            federation.gateway(2).genesis()->record.hash());
  EXPECT_EQ(federation.events(1, "run_not_shown"), 0U);
}

// A run begins at once where all listed sites are here, and else after that time.
TEST(SecondRunTest, IsNotLookedForForLong) {
  const auto founded_after = [](ScriptedFederation::Options options) {
    ScriptedFederation federation(std::move(options));
    EXPECT_TRUE(federation.run_until([&] { return federation.gateway(1).genesis().has_value(); },
                                     60 * kSecond));
    return federation.now();
  };
  EXPECT_LT(founded_after(options_of({kSecond})), kSecond);
  EXPECT_LT(founded_after(with_one_voter()), 2 * kSecond);
  auto alone = with_one_voter();
  alone.late = {2};
  const auto after = founded_after(std::move(alone));
  EXPECT_GE(after, 20 * kSecond);
  EXPECT_LT(after, 22 * kSecond);
}

// A site says that it has a run, and does not show how that began: the operator decides, also where
// this site has voted for another one, which nobody has heard of.
TEST(SecondRunTest, IsNotFoundedWhereOneIsNamedAndNotShown) {
  for (const bool voted : {false, true}) {
    auto options = with_one_voter();
    options.puppets = {2};
    ScriptedFederation federation(std::move(options));
    federation.puppet(2).run = security::blake2b(bytes_of("a run"));
    auto& disk = federation.disk(1);
    if (voted) {
      // It decides so after 20 s, and the vote is on its disk after 170. Meanwhile it asks for
      // none.
      federation.cut_off(1, true);
      disk.set_speed({.sync = 150 * kSecond});
      federation.run_for(21 * kSecond);
      disk.set_speed({});
      federation.cut_off(1, false);
      federation.run_for(130 * kSecond);
    }
    federation.run_for(60 * kSecond);
    EXPECT_FALSE(federation.gateway(1).genesis());
    EXPECT_EQ(federation.events(1, "founding_stuck"), 1U);
    EXPECT_THAT(federation.gateway(1).status().attention,
                testing::Contains(testing::AllOf(testing::HasSubstr("it waits for run "),
                                                 testing::HasSubstr("which s2 has"))));
    federation.kill(1);
    const auto loaded = OuterStore(disk, "outer").load(1);
    ASSERT_TRUE(loaded);
    EXPECT_EQ(loaded->vote.accepted.has_value(), voted);
  }
}

// Nor does a voter vote for one that another one proposes, who does not see that site.
TEST(SecondRunTest, IsNotVotedForWhereOneIsNamed) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.without_vote = options.puppets = {3};
  ScriptedFederation federation(std::move(options));
  federation.puppet(3).run = security::blake2b(bytes_of("a run"));
  federation.cut(1, 3, true);
  federation.run_for(60 * kSecond);
  EXPECT_TRUE(federation.gateway(1).status().attention.empty()) << "it has voted";
  for (const SiteId site : {1, 2}) EXPECT_FALSE(federation.gateway(site).genesis()) << site;
  EXPECT_EQ(federation.events(2, "founding_stuck"), 1U);
}

// --- The voters have changed since the run began, and the new one has lost its disk

class VotersChangedTest : public testing::Test {
 protected:
  static constexpr SiteId kFounder = 1, kVoter = 2, kMember = 3;
  static ScriptedFederation::Options options() {
    auto options = options_of({kSecond, kSecond, kSecond});
    options.without_vote = {kVoter, kMember};
    options.gateway.sync.outer_steps = 1000;
    return options;
  }
  void SetUp() override {
    ASSERT_TRUE(
        federation_.run_until([&] { return federation_.step(kMember) >= 3; }, 120 * kSecond));
    for (const SiteId site : {kFounder, kVoter, kMember}) {
      federation_.kill(site);
      federation_.give_roster(site, federation_.newer_roster({kVoter}));
    }
    federation_.disk(kVoter).wipe();
  }

  ScriptedFederation federation_{options()};
};

// No record 0 that it is shown is of the roster's voters, and one proves itself all the same.
TEST_F(VotersChangedTest, NoSecondRunIsFoundedWhileAMemberShowsTheFirst) {
  for (const SiteId site : {kFounder, kVoter, kMember}) federation_.start(site);
  federation_.run_for(400 * kSecond);
  EXPECT_FALSE(federation_.gateway(kVoter).genesis());
  EXPECT_GE(federation_.events(kVoter, "genesis_refused"), 1U);
  EXPECT_GE(federation_.events(kVoter, "founding_stuck"), 1U);
  const auto attention = federation_.gateway(kVoter).status().attention;
  EXPECT_THAT(attention, testing::Contains(testing::AllOf(
                             testing::HasSubstr("which s3 has"),
                             testing::HasSubstr("before that site says that it has none"))));
  EXPECT_THAT(attention, testing::Contains(testing::HasSubstr("--run")));
  // Nor once it is gone: that it began is known.
  for (const SiteId site : {kFounder, kMember}) federation_.kill(site);
  federation_.run_for(400 * kSecond);
  EXPECT_FALSE(federation_.gateway(kVoter).genesis());
  // Once the roster names the run, it is joined.
  auto roster = federation_.newer_roster({kVoter});
  federation_.start(kMember);
  roster.run = federation_.gateway(kMember).genesis()->record.hash();
  federation_.kill(kVoter);
  federation_.give_roster(kVoter, roster);
  federation_.start(kVoter);
  ASSERT_TRUE(federation_.run_until(
      [&] { return federation_.gateway(kVoter).genesis().has_value(); }, 60 * kSecond));
  EXPECT_EQ(federation_.gateway(kVoter).genesis()->record.hash(), *roster.run);
}

// The founder alone has only its own word for it, as a liar has: two minutes.
TEST_F(VotersChangedTest, TheFounderAloneIsBelievedForTwoMinutes) {
  for (const SiteId site : {kFounder, kVoter}) federation_.start(site);
  federation_.run_for(110 * kSecond);
  EXPECT_FALSE(federation_.gateway(kVoter).genesis());
  EXPECT_TRUE(federation_.run_until(
      [&] { return federation_.gateway(kVoter).genesis().has_value(); }, 30 * kSecond));
}

// --- A listed site without a vote says that it has a run, and shows none

class InventedRunTest : public testing::Test {
 protected:
  static constexpr SiteId kLiar = 3;
  static ScriptedFederation::Options options() {
    auto options = options_of({kSecond, kSecond, kSecond});
    options.without_vote = options.puppets = {kLiar};
    return options;
  }
  void SetUp() override { invent_run(); }
  void invent_run() { liar_.run = security::blake2b(bytes_of(std::to_string(++invented_))); }
  // When all voters have it; or the limit.
  Nanoseconds founded_after(Nanoseconds limit) {
    const auto began = federation_.now();
    federation_.run_until(
        [this] { return federation_.gateway(1).genesis() && federation_.gateway(2).genesis(); },
        limit);
    return federation_.now() - began;
  }

  void expect_two_minutes() {
    const auto after = founded_after(600 * kSecond);
    EXPECT_GE(after, 115 * kSecond);
    EXPECT_LT(after, 130 * kSecond);
  }
  // With its signature alone, to whoever asks.
  Certificate show_run_of(std::vector<SiteId> voters) {
    Certificate genesis;
    auto& record = genesis.record;
    record.view = {.members = {1, 2, kLiar}, .voters = std::move(voters), .vote_files = {}};
    for (const auto site : record.view.members) record.view.set_vote_file(site, 77);
    record.next_view = record.view;
    record.fingerprint = Fingerprint::of_run(federation_.layout(), options().gateway.sync).digest();
    genesis.accepts.push_back(
        {kLiar, liar_.signer.sign(security::context::accept, accept_body(record, 0))});
    liar_.run = record.hash();
    liar_.heard = [genesis](Link& from, MessageType type, ByteReader&) {
      if (type != MessageType::record_request) return;
      Records records;
      records.certificates.push_back(genesis);
      from.send(encode(records));
    };
    return genesis;
  }

  ScriptedFederation federation_{options()};
  Puppet& liar_ = federation_.puppet(kLiar);
  int invented_ = 0;
};

TEST_F(InventedRunTest, HoldsUpTheFoundingForTwoMinutes) {
  expect_two_minutes();
  for (const SiteId site : {1, 2}) EXPECT_EQ(federation_.events(site, "run_not_shown"), 1U) << site;
  EXPECT_TRUE(federation_.run_until([&] { return federation_.finished(); }, 600 * kSecond));
}

// Nor where it shows what it can sign alone: a run of which it is the only voter.
TEST_F(InventedRunTest, HasNoMoreTimeWithARecordOfItsOwn) {
  const auto genesis = show_run_of({kLiar});
  ASSERT_TRUE(genesis.proves(genesis.record.view, sim::SimulatedVerifier()));
  expect_two_minutes();
  EXPECT_GE(federation_.events(1, "genesis_refused"), 1U);
}

// Or one with another voter, who has signed nothing.
TEST_F(InventedRunTest, HasNoMoreTimeWithARecordThatItsVotersHaveNotSigned) {
  show_run_of({1, kLiar});
  expect_two_minutes();
  EXPECT_GE(federation_.events(1, "genesis_refused"), 1U);
}

// Nor for longer where it is another one in each session, and sessions begin all the time.
TEST_F(InventedRunTest, HasNoMoreTimeUnderOtherNames) {
  const auto again = [this](const auto& self) -> void {
    invent_run();
    for (const SiteId voter : {1, 2}) liar_.link(voter).end("another run");
    liar_.loop.call_at(federation_.now() + 5 * kSecond, [self] { self(self); });
  };
  again(again);
  const auto after = founded_after(600 * kSecond);
  EXPECT_GT(invented_, 20);
  EXPECT_GE(after, 115 * kSecond);
  EXPECT_LT(after, 140 * kSecond);
}

TEST_F(InventedRunTest, IsForgottenOnceWhoNamedItIsGoneForTwoMinutes) {
  federation_.run_for(10 * kSecond);
  federation_.cut_off(kLiar, true);
  const auto after = founded_after(600 * kSecond);
  EXPECT_GE(after, 115 * kSecond);
  EXPECT_LT(after, 140 * kSecond);
}

// Here and away by turns: both times together.
TEST_F(InventedRunTest, HasNoMoreTimeByComingAndGoing) {
  const auto turn = [this](const auto& self, bool away) -> void {
    federation_.cut_off(kLiar, away);
    liar_.loop.call_at(federation_.now() + 15 * kSecond, [self, away] { self(self, !away); });
  };
  turn(turn, false);
  const auto after = founded_after(600 * kSecond);
  EXPECT_GE(after, 115 * kSecond);
  EXPECT_LT(after, 260 * kSecond);
}

// Who is here and can show nothing, since a session is refused, may have one: the operator decides.
TEST_F(InventedRunTest, CountsWhileASessionIsRefused) {
  liar_.objects = "other settings";
  EXPECT_EQ(founded_after(600 * kSecond), 600 * kSecond);
  EXPECT_EQ(federation_.events(1, "run_not_shown"), 0U);
  EXPECT_THAT(federation_.gateway(1).status().attention,
              testing::Contains(testing::AllOf(testing::HasSubstr("which s3 has"),
                                               testing::HasSubstr("without a session"))));
  federation_.cut_off(kLiar, true);
  const auto after = founded_after(600 * kSecond);
  EXPECT_GE(after, 115 * kSecond) << "it was here";
  EXPECT_LT(after, 140 * kSecond);
}

// Who was away for longer has the time to show its run all the same, once it is back.
TEST(SecondRunTest, IsNotFoundedAsSoonAsWhoNamedOneComesBack) {
  auto options = with_one_voter();
  options.puppets = {2};
  options.gateway.sync.min_sites = 2;
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(2);
  puppet.run = security::blake2b(bytes_of("a run"));
  puppet.heard = [](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow_as_member(from, type, in);
  };
  federation.run_for(10 * kSecond);
  federation.cut(1, 2, true);
  federation.run_for(180 * kSecond);
  ASSERT_EQ(federation.events(1, "run_not_shown"), 1U);
  federation.cut(1, 2, false);
  ASSERT_TRUE(federation.run_until([&] { return federation.gateway(1).session_with(2) != 0; },
                                   60 * kSecond));
  federation.run_for(60 * kSecond);
  EXPECT_FALSE(federation.gateway(1).genesis());
}

}  // namespace
}  // namespace isthmus::inter

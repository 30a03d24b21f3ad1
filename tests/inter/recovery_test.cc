// What survivors go on from when the operator names a state: the only voter is lost for good.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "tests/inter/scripted_federation.h"

namespace isthmus::inter {
namespace {

using testing::ElementsAre;

// Three sites, of which the first alone votes.
class RecoveryTest : public testing::Test {
 protected:
  static ScriptedFederation::Options options() {
    auto options = options_of({kSecond, kSecond, kSecond});
    options.without_vote = {2, 3};
    options.gateway.sync.outer_steps = 30;
    return options;
  }
  void start(ScriptedFederation::Options chosen) {
    federation_ = std::make_unique<ScriptedFederation>(std::move(chosen));
  }
  ScriptedFederation& federation() { return *federation_; }
  Gateway& gateway(SiteId site) { return federation_->gateway(site); }
  std::uint64_t step_of(SiteId site) { return federation_->step(site); }
  bool until(const std::function<bool()>& condition) {
    return federation_->run_until(condition, 300 * kSecond);
  }
  bool saved_by_survivors(std::uint64_t step) {
    return std::ranges::all_of(survivors_, [&](SiteId site) {
      return step_of(site) == step && gateway(site).saved_step() == step;
    });
  }

  // Of what site 2 has now.
  security::Recovery recovery_from_here() {
    security::Recovery recovery;
    recovery.run = gateway(2).genesis()->record.hash();
    recovery.step = gateway(2).saved_step();
    recovery.root = gateway(2).root();
    recovery.voters = survivors_;
    return recovery;
  }
  // The survivors are started again, with a roster that names it.
  void recover(const security::Recovery& recovery) {
    auto roster = federation_->newer_roster({2, 3});
    roster.run = recovery.run;
    roster.recoveries = {recovery};
    for (const auto site : survivors_) {
      federation_->kill(site);
      federation_->disk(site).set_faults({});
      federation_->give_roster(site, roster);
      federation_->ranks(site).restart();
      federation_->start(site);
    }
  }
  void expect_equal_end() {
    EXPECT_TRUE(federation_->run_until([&] { return federation_->finished(); }, 600 * kSecond));
    EXPECT_EQ(gateway(2).root(), gateway(3).root());
  }

  const std::vector<SiteId> survivors_ = {2, 3};

 private:
  std::unique_ptr<ScriptedFederation> federation_;
};

// The operator says which state is right. Nobody has the bytes of the steps that led to it any
// more, and the voters that could vouch for it are lost.
TEST_F(RecoveryTest, WhoIsBehindFetchesTheStateThatTheOperatorNames) {
  start(options());
  ASSERT_TRUE(until([&] { return step_of(3) >= 2; }));
  federation().cut_off(3, true);
  const auto behind = step_of(3);
  federation().kill(2);
  federation().disk(2).wipe();
  ASSERT_TRUE(until([&] { return step_of(1) >= behind + 5; }));
  federation().start(2);
  ASSERT_TRUE(
      until([&] { return step_of(2) >= behind + 5 && gateway(2).saved_step() >= behind + 5; }));
  federation().kill(1);  // for good
  ASSERT_TRUE(until([&] { return gateway(2).saved_step() == step_of(2); }));
  const auto recovery = recovery_from_here();
  federation().cut_off(3, false);
  recover(recovery);
  EXPECT_TRUE(until([&] { return step_of(2) > recovery.step && step_of(3) > recovery.step; }));
}

// A step that was mistaken: a survivor does not look for lost votes, but says what it misses.
TEST_F(RecoveryTest, WhoMissesTheStateThatTheOperatorNamesSaysSo) {
  start(options());
  ASSERT_TRUE(until([&] { return saved_by_survivors(6); }));
  auto recovery = recovery_from_here();
  federation().kill(1);  // for good
  recovery.step += 3;
  recover(recovery);
  federation().run_for(60 * kSecond);
  for (const auto site : survivors_) {
    EXPECT_THAT(gateway(site).status().attention,
                ElementsAre(testing::AllOf(
                    testing::StartsWith("it waits for a site that has the state from which the "
                                        "roster goes on: step 9 with the root "),
                    testing::HasSubstr("; this site has step 6 with the root "),
                    testing::HasSubstr("roster recover --replace"))));
    EXPECT_EQ(federation().events(site, "sites_missed"), 1U);
    EXPECT_EQ(federation().events(site, "vote_file_lost"), 0U);
  }
  recovery.step -= 3;  // as with --replace
  recover(recovery);
  EXPECT_TRUE(until([&] { return step_of(2) > 6 && step_of(3) > 6; }));
}

// It is noted once that it was taken up. Where that note is damaged votes of since then stand.
TEST_F(RecoveryTest, ADamagedNoteOfItMakesNoVotesForgotten) {
  start(options());
  ASSERT_TRUE(until([&] { return saved_by_survivors(6); }));
  const auto recovery = recovery_from_here();
  federation().kill(1);  // for good
  recover(recovery);
  ASSERT_TRUE(until([&] { return step_of(2) > 8 && step_of(3) > 8; }));
  federation().kill(2);
  auto note = *federation().disk(2).open("outer/recovery", Disk::Open::update);
  Bytes byte(1);
  ASSERT_TRUE(note->read_at(5, byte));
  byte[0] ^= std::byte{4};
  ASSERT_TRUE(note->write_at(5, byte));
  note.reset();
  federation().start(2);
  federation().run_for(kSecond / 100);  // it has begun, and heard of nobody
  federation().kill(2);
  const auto loaded = OuterStore(federation().disk(2), "outer").load(99);
  ASSERT_TRUE(loaded) << loaded.error().text();
  EXPECT_EQ(loaded->vote_file, vote_file_of(recovery));
  EXPECT_GT(loaded->vote_step, 8U);
  federation().start(2);
  expect_equal_end();
}

// The survivors had applied a step more than they had saved, and contributed to the one after it:
// neither of these is.
TEST_F(RecoveryTest, AContributionToAStepThatWasGivenUpIsGivenUpToo) {
  start(options());
  ASSERT_TRUE(until([&] { return saved_by_survivors(6); }));
  const auto recovery = recovery_from_here();
  for (const auto site : survivors_) federation().disk(site).set_faults({.full_for = "/state."});
  ASSERT_TRUE(until([&] { return gateway(2).pending_step() == 8; }));
  federation().kill(1);  // for good
  recover(recovery);
  ASSERT_TRUE(until([&] { return gateway(2).state() != nullptr; }));
  EXPECT_EQ(gateway(2).pending_step(), std::nullopt);
  expect_equal_end();
}

// A site was cut off while two steps were decided, and replays them. What it had contributed to the
// first one, and no record names, rides in what it contributes after both, before it has saved
// their state; and its file goes once nobody needs the first step any more. The operator gives up
// the contribution in which it rode.
TEST_F(RecoveryTest, WhatRodeInAContributionThatIsGivenUpRidesAgain) {
  auto chosen = options();
  chosen.compute = {40 * kSecond, 40 * kSecond, 2 * kSecond};
  chosen.gateway.sync.outer_steps = 12;
  chosen.gateway.sync.absent_steps = 10;
  chosen.gateway.first_wait = 2 * kSecond;
  chosen.gateway.straggler_wait = 100 * kSecond;
  start(std::move(chosen));
  const auto no_room = [&](SiteId site, bool none) {
    federation().disk(site).set_faults({.full_for = none ? "/state." : ""});
  };
  ASSERT_TRUE(until([&] { return step_of(3) == 4 && gateway(3).saved_step() == 4; }));
  federation().cut_off(3, true);
  ASSERT_TRUE(until([&] { return gateway(3).pending_step() == 5; }));
  ASSERT_TRUE(until([&] { return gateway(1).saved_step() == 5; }));
  no_room(1, true);  // so the bytes of the first step stay
  ASSERT_TRUE(until([&] { return step_of(2) == 6; }));
  const auto carried = federation().events(3, "contribution_carried");
  federation().cut_off(3, false);
  ASSERT_TRUE(until([&] { return gateway(3).saved_step() == 5; }));
  no_room(3, true);
  ASSERT_TRUE(until([&] { return gateway(3).pending_step() == 7; }));
  ASSERT_EQ(federation().events(3, "contribution_carried"), carried + 1);
  no_room(1, false);
  ASSERT_TRUE(until([&] { return gateway(1).saved_step() == 6; }));
  federation().kill(1);  // for good
  no_room(3, false);
  ASSERT_TRUE(until([&] { return saved_by_survivors(6); }));
  federation().run_for(60 * kSecond);  // so they go
  ASSERT_EQ(gateway(3).pending_step(), 7U);
  recover(recovery_from_here());
  ASSERT_TRUE(until([&] { return step_of(3) > 6; }));
  EXPECT_EQ(federation().events(3, "contribution_carried"), carried + 2);
  expect_equal_end();
}

}  // namespace
}  // namespace isthmus::inter

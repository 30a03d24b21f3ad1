// A listed site without a vote says of others what they have not said: that they want in, or have
// another vote file. What is passed on in somebody's name is signed, so nobody believes it.
#include <gtest/gtest.h>

#include <optional>

#include "tests/inter/scripted_federation.h"

namespace isthmus::inter {
namespace {

constexpr SiteId kLiar = 4, kVictim = 3;
constexpr VoteFileId kForged = 999;

class ForgedWishesTest : public testing::Test {
 protected:
  static ScriptedFederation::Options options() {
    auto options = options_of({kSecond, 2 * kSecond, 2 * kSecond, 2 * kSecond});
    options.puppets = {kLiar};
    options.without_vote = {kLiar};
    options.gateway.sync.outer_steps = 100'000;
    return options;
  }
  void start(ScriptedFederation::Options chosen) {
    federation_.emplace(std::move(chosen));
    federation_->puppet(kLiar).heard = [this](Link& from, MessageType type, ByteReader& in) {
      Puppet::follow(from, type, in, [&](const Status& theirs, Status& mine) {
        if (!of_founding_ && from.peer().site == kVictim && theirs.step == 0 &&
            theirs.vote_file != kNoVoteFile)
          of_founding_ = theirs.own_wish(kVictim);
        mine.vote_file = 77;
        mine.sees = {};
        // As if at first hand, and as if passed on once.
        if (lie_) {
          lie_->hops = lie_->hops == 0 ? 1 : 0;
          mine.wishes.push_back(*lie_);
        }
      });
    };
  }
  void lie(bool joins) { lie_ = Wish{.site = kVictim, .joins = joins, .vote_file = kForged}; }
  void end_of_lies() {
    lie_.reset();
    federation_->cut_off(kLiar, true);
  }
  std::uint64_t steps_in(Nanoseconds time) {
    const auto before = federation_->step(1);
    federation_->run_for(time);
    return federation_->step(1) - before;
  }

  std::optional<ScriptedFederation> federation_;
  std::optional<Wish> lie_;
  std::optional<Wish> of_founding_;  // what the third site signed before there was a run
};

TEST_F(ForgedWishesTest, StopNoFounding) {
  auto chosen = options();
  chosen.late = {kVictim};
  start(std::move(chosen));
  lie(false);
  federation_->run_for(30 * kSecond);
  end_of_lies();
  federation_->start(kVictim);
  EXPECT_TRUE(
      federation_->run_until([&] { return federation_->step(kVictim) >= 2; }, 60 * kSecond));
}

// Of two that see each other through the second site only.
TEST_F(ForgedWishesTest, KeepNobodysWorkOut) {
  start(options());
  federation_->cut(1, kVictim, true);
  ASSERT_TRUE(federation_->run_until([&] { return federation_->step(1) >= 4; }, 300 * kSecond));
  const auto quiet = steps_in(300 * kSecond);
  lie(false);
  const auto before = federation_->gateway(1).chain().size();
  EXPECT_GE(steps_in(300 * kSecond), quiet * 3 / 4);
  const auto& chain = federation_->gateway(1).chain();
  std::size_t named = 0;
  for (auto k = before; k < chain.size(); ++k) named += chain[k].record.part_of(kVictim) != nullptr;
  EXPECT_GE(named, (chain.size() - before) * 3 / 4);
  EXPECT_EQ(federation_->events(kVictim, "vote_file_lost"), 0U);
}

// It is told to the first voter while that does not see the third one, and then the second is lost.
TEST_F(ForgedWishesTest, ToldForAMomentStopNoMajority) {
  start(options());
  ASSERT_TRUE(federation_->run_until([&] { return federation_->step(1) >= 4; }, 300 * kSecond));
  federation_->cut(1, kVictim, true);
  federation_->run_for(10 * kSecond);
  lie(false);
  federation_->run_for(20 * kSecond);
  federation_->kill(2);
  end_of_lies();
  federation_->cut(1, kVictim, false);
  EXPECT_GE(steps_in(600 * kSecond), 100U);
}

// Nobody is taken in, and dropped in vain, while it is away: it would have to wait when it returns.
TEST_F(ForgedWishesTest, TakeNobodyInWhoIsAway) {
  start(options());
  const auto member = [&] { return federation_->gateway(1).view().is_member(kVictim); };
  ASSERT_TRUE(federation_->run_until([&] { return federation_->step(1) >= 4; }, 300 * kSecond));
  federation_->kill(kVictim);
  ASSERT_TRUE(federation_->run_until([&] { return !member(); }, 600 * kSecond));
  lie(true);
  const auto before = federation_->gateway(1).chain().size();
  EXPECT_GE(steps_in(300 * kSecond), 50U);
  const auto& chain = federation_->gateway(1).chain();
  for (auto k = before; k < chain.size(); ++k)
    EXPECT_FALSE(chain[k].record.next_view.is_member(kVictim)) << "step " << k + 1;
}

// A new voter, by a newer roster, that is not there yet.
TEST_F(ForgedWishesTest, NameNoNewVotersVoteFile) {
  auto chosen = options();
  chosen.late = {kVictim};
  chosen.without_vote = {kVictim, kLiar};
  start(std::move(chosen));
  lie(false);
  // A run begins after 20 s, as one of its sites is not here.
  ASSERT_TRUE(federation_->run_until([&] { return federation_->step(1) >= 2; }, 80 * kSecond));
  auto newer = federation_->newer_roster({1, 2, kVictim});
  newer.run = federation_->gateway(1).genesis()->record.hash();
  for (const SiteId site : {SiteId{1}, SiteId{2}, kVictim}) federation_->give_roster(site, newer);
  for (const SiteId site : {1, 2}) {
    federation_->kill(site);
    federation_->start(site);
  }
  federation_->run_for(10 * kSecond);
  federation_->start(kVictim);
  ASSERT_TRUE(federation_->run_until(
      [&] { return federation_->gateway(1).status().voters.size() == 3; }, 120 * kSecond));
  EXPECT_NE(federation_->gateway(1).view().vote_file_of(kVictim), kForged);
  federation_->kill(2);
  EXPECT_GE(steps_in(300 * kSecond), 50U);
}

// What it signed itself for the founding says nothing of a later step.
TEST_F(ForgedWishesTest, OfTheFoundingAreNotBelievedLater) {
  start(options());
  ASSERT_TRUE(federation_->run_until([&] { return federation_->step(1) >= 4; }, 300 * kSecond));
  ASSERT_TRUE(of_founding_);
  federation_->kill(kVictim);
  federation_->disk(kVictim).wipe();
  federation_->cut(1, kVictim, true);
  federation_->start(kVictim);
  const auto file = [&] { return federation_->gateway(1).view().vote_file_of(kVictim); };
  ASSERT_TRUE(federation_->run_until(
      [&] {
        return federation_->events(kVictim, "vote_readmitted") == 1 &&
               file() != of_founding_->vote_file;
      },
      120 * kSecond));
  lie_ = of_founding_;
  const auto bad = federation_->gateway(1).counters().bad_signatures;
  for (int i = 0; i < 60; ++i) {
    federation_->run_for(2 * kSecond);
    EXPECT_NE(file(), of_founding_->vote_file);
  }
  EXPECT_GT(federation_->gateway(1).counters().bad_signatures, bad) << "it was never told";
  EXPECT_EQ(federation_->events(kVictim, "vote_file_lost"), 1U);
}

// But where it loses its disk before the founding, that stands still if they are told: as if it had
// voted with that disk, which nobody can know. It says so.
TEST_F(ForgedWishesTest, OfADiskThatIsLostBeforeTheFoundingStopItAndThatIsSaid) {
  auto chosen = options();
  chosen.late = {1, 2};
  start(std::move(chosen));
  ASSERT_TRUE(federation_->run_until([&] { return of_founding_.has_value(); }, 30 * kSecond));
  federation_->kill(kVictim);
  federation_->disk(kVictim).wipe();
  lie_ = of_founding_;
  for (const SiteId site : {1, 2}) federation_->start(site);
  federation_->run_for(30 * kSecond);
  end_of_lies();
  federation_->start(kVictim);
  federation_->run_for(60 * kSecond);
  EXPECT_FALSE(federation_->gateway(1).genesis());
  EXPECT_GE(federation_->events(kVictim, "founding_stuck"), 1U);
}

}  // namespace
}  // namespace isthmus::inter

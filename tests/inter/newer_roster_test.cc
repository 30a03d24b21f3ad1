// A newer roster that gives a site its vote: when the records name it, and what counts from then
// on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/inter/scripted_federation.h"

namespace isthmus::inter {
namespace {

// Two sites run with their votes; the third one's comes with a newer roster.
class NewerRosterTest : public testing::Test {
 protected:
  static ScriptedFederation::Options options() {
    auto options = options_of({kSecond, kSecond, kSecond});
    options.without_vote = {3};
    options.late = {3};
    options.gateway.sync.outer_steps = 1000;
    return options;
  }

  void SetUp() override {
    ASSERT_TRUE(federation_.run_until([&] { return federation_.step(1) >= 2; }, 60 * kSecond));
    auto newer = federation_.newer_roster({1, 2, 3});
    newer.run = federation_.gateway(1).genesis()->record.hash();
    for (const SiteId site : {1, 2, 3}) federation_.give_roster(site, newer);
  }
  // One after the other.
  void restart_voters(Nanoseconds apart) {
    for (const SiteId site : {1, 2}) {
      if (site == 2) federation_.run_for(apart);
      federation_.kill(site);
      federation_.start(site);
    }
    restarted_ = federation_.now();
  }

  bool all_vote_within(Nanoseconds limit) {
    return federation_.run_until([&] { return federation_.gateway(1).status().voters.size() == 3; },
                                 limit);
  }

  ScriptedFederation federation_{options()};
  Nanoseconds restarted_ = 0;
};

// From the first record that names it: it is not a voter that nobody knows a vote file of, so that
// the run would stop with the next site that is lost.
TEST_F(NewerRosterTest, AVoteComesWithItsVoteFile) {
  restart_voters(60 * kSecond);
  federation_.run_for(20 * kSecond);
  federation_.start(3);
  ASSERT_TRUE(all_vote_within(60 * kSecond));
  federation_.kill(2);
  const auto step = federation_.step(1);
  EXPECT_TRUE(
      federation_.run_until([&] { return federation_.step(1) >= step + 3; }, 200 * kSecond));
}

// A new voter that does not come keeps the others' roster waiting for a while only, and lost
// nothing.
TEST_F(NewerRosterTest, WhoDoesNotComeIsNotWaitedForForever) {
  restart_voters(0);
  EXPECT_TRUE(all_vote_within(120 * kSecond));
  EXPECT_GE(federation_.now() - restarted_, 25 * kSecond);
  const auto step = federation_.step(1);
  EXPECT_TRUE(federation_.run_until([&] { return federation_.step(1) >= step + 3; }, 60 * kSecond))
      << "two of three have their votes";
  federation_.start(3);
  ASSERT_TRUE(federation_.run_until([&] { return federation_.events(3, "vote_named") == 1; },
                                    200 * kSecond));
  EXPECT_EQ(federation_.events(3, "vote_awaited"), 1U);
  EXPECT_EQ(federation_.events(3, "vote_file_lost"), 0U);
  EXPECT_EQ(federation_.gateway(3).counters().votes_lost, 0U);
  federation_.kill(2);
  const auto with_three = federation_.step(1);
  EXPECT_TRUE(
      federation_.run_until([&] { return federation_.step(1) >= with_three + 3; }, 200 * kSecond));
}

// The only one left beside it says what is missed, and not that anything was lost.
TEST_F(NewerRosterTest, AVoteThatNoRecordNamesYetIsSaidToBeSo) {
  restart_voters(0);
  ASSERT_TRUE(all_vote_within(120 * kSecond));
  federation_.kill(2);
  federation_.start(3);
  federation_.run_for(60 * kSecond);
  EXPECT_THAT(federation_.gateway(1).status().attention,
              testing::ElementsAre("it waits for s2: no outer step is decided without a majority "
                                   "of the voters, and no record names the vote file of s3"));
  EXPECT_THAT(federation_.gateway(3).status().attention,
              testing::ElementsAre(testing::HasSubstr("it waits for s2"),
                                   "no record names the vote file of this site yet: it votes from "
                                   "then on"));
  federation_.start(2);
  const auto step = federation_.step(1);
  EXPECT_TRUE(
      federation_.run_until([&] { return federation_.step(3) >= step + 3; }, 200 * kSecond));
  EXPECT_TRUE(federation_.gateway(3).status().attention.empty());
}

}  // namespace
}  // namespace isthmus::inter

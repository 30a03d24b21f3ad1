// What a voter can cost that signs ballots which no honest one would: it is not tolerated in votes,
// but what it did is over once it is silent, or kept out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "tests/inter/scripted_federation.h"

namespace isthmus::inter {
namespace {

// The third of three voters is a puppet, so that a step needs both others once it is silent.
class LyingVoterTest : public testing::Test {
 protected:
  static constexpr SiteId kLiar = 3;
  static constexpr VoteFileId kVoteFile = 77;

  LyingVoterTest() : federation_(options()) {
    liar().heard = [this](Link& from, MessageType type, ByteReader& in) {
      liar().vote_for_run(from, type, in);
      note_close(type, in);
      if (silent_) return;
      Puppet::follow(from, type, in, [](const Status&, Status& mine) {
        mine.vote_file = kVoteFile;
        mine.sees = {1, 2, 3};
      });
    };
  }
  static ScriptedFederation::Options options() {
    auto options = options_of({kSecond, kSecond, kSecond});
    options.puppets = {kLiar};
    options.gateway.sync.outer_steps = 100'000;
    return options;
  }

  Puppet& liar() { return federation_.puppet(kLiar); }
  std::uint64_t step(SiteId site) { return federation_.step(site); }
  bool reach(std::uint64_t wanted, Nanoseconds limit) {
    return federation_.run_until([&] { return step(1) >= wanted && step(2) >= wanted; }, limit);
  }
  void note_close(MessageType type, ByteReader& in) {
    const auto message = type == MessageType::close ? decode_signed(type, in) : std::nullopt;
    const auto close = message ? decode_close(message->body) : std::nullopt;
    if (close) closed_ = {{message->signer, close->root, close->tokens, close->base}, close->id};
  }
  // Of what was closed last: as that site would vote for it.
  Record proposal(const Gateway& gateway) const {
    const auto& before = gateway.chain().back().record;
    Record record = before;
    record.step = closed_.second.step;
    record.parent = before.hash();
    record.parent_root = gateway.root();
    record.view = record.next_view = gateway.view();
    record.parts = {closed_.first};
    return record;
  }
  // The highest ballot up to this one that is the liar's to lead.
  static std::uint64_t its_own(std::uint64_t most) { return most - (most + 1) % 3; }
  void prepare(SiteId to, std::uint64_t ballot) {
    liar().link(to).send(
        sign(liar().signer, kLiar, federation_.step_at_hand(to), Prepare{ballot}).encode());
  }

  ScriptedFederation federation_;
  std::pair<Part, StepId> closed_;
  bool silent_ = false;
};

// Whoever promises the last ballot that there is can promise no other one, and the record that
// would keep its leader out could never be decided.
TEST_F(LyingVoterTest, TheLastBallotIsFollowedByNobody) {
  ASSERT_TRUE(reach(4, 300 * kSecond));
  federation_.kill(2);
  federation_.run_for(30 * kSecond);
  prepare(1, its_own(kBallotMax));
  silent_ = true;
  federation_.run_for(120 * kSecond);  // in which the few that are left are opened in vain
  federation_.start(2);
  EXPECT_TRUE(reach(step(1) + 8, 300 * kSecond));
}

// Nor proposed in: who votes has promised as much.
TEST_F(LyingVoterTest, InTheLastBallotNobodyVotes) {
  ASSERT_TRUE(reach(4, 300 * kSecond));
  federation_.kill(2);
  federation_.run_for(30 * kSecond);
  ASSERT_EQ(closed_.second, federation_.step_at_hand(1));
  ASSERT_EQ(closed_.first.site, 1U);
  const Propose last{its_own(kBallotMax), proposal(federation_.gateway(1))};
  liar().link(1).send(sign(liar().signer, kLiar, closed_.second, last).encode());
  silent_ = true;
  federation_.run_for(120 * kSecond);
  // And sees the liar, so that nobody else tells it what was proposed.
  federation_.cut(1, 2, true);
  federation_.start(2);
  federation_.run_for(10 * kSecond);
  federation_.cut(1, 2, false);
  EXPECT_TRUE(reach(step(1) + 8, 300 * kSecond));
}

// As high as it is followed, each second, and one of the others was away: that one gets there too.
TEST_F(LyingVoterTest, BallotsThatItOpenedWhileOneWasAwayAreFollowedInTheTimeThatTheyTook) {
  ASSERT_TRUE(reach(4, 300 * kSecond));
  federation_.kill(2);
  federation_.run_for(30 * kSecond);
  const auto before = step(1);
  constexpr int kSeconds = 120;
  for (int i = 1; i <= kSeconds; ++i) {
    prepare(1, its_own(i * kBallotsFollowed));
    federation_.run_for(kSecond);
  }
  ASSERT_EQ(step(1), before) << "alone it decides nothing";
  silent_ = true;
  federation_.start(2);
  EXPECT_TRUE(reach(before + 1, (kSeconds + 90) * kSecond));
  EXPECT_TRUE(reach(before + 8, 300 * kSecond));
}

// Also if all of them are started anew: the liar is kept out so.
TEST_F(LyingVoterTest, BallotsThatItOpenedAreNoneOfThoseWhoStartAnew) {
  ASSERT_TRUE(reach(4, 300 * kSecond));
  federation_.cut(1, 2, true);
  federation_.run_for(30 * kSecond);
  const auto before = step(1);
  for (int i = 1; i <= 3600; ++i) {
    for (const SiteId site : {1, 2}) prepare(site, its_own(i * kBallotsFollowed));
    federation_.run_for(kSecond);
  }
  ASSERT_EQ(step(1), before);
  silent_ = true;
  for (const SiteId site : {1, 2}) federation_.kill(site);
  federation_.cut(1, 2, false);
  for (const SiteId site : {1, 2}) federation_.start(site);
  EXPECT_TRUE(reach(before + 8, 300 * kSecond));
}

// Promises in one ballot, each another one, or of more than there can be: what is kept of them for
// who does not see the liar, and passed on, fits a thin line together with what steps need.
// Promises; or all kinds of votes, in which a view is named that is to be the next.
enum class Words { of_members, of_invented_sites, of_a_next_view };

class WordyVoterTest : public LyingVoterTest, public testing::WithParamInterface<Words> {};

TEST_P(WordyVoterTest, EndsNoSessionOfOthers) {
  const bool of_members = GetParam() == Words::of_members;
  const bool of_next = GetParam() == Words::of_a_next_view;
  ASSERT_TRUE(reach(4, 300 * kSecond));
  federation_.cut(2, kLiar, true);
  federation_.set_access(2, of_next ? 8'000 : 50'000);
  for (const SiteId site : {1, 2}) federation_.end_ranks(site);  // the step stands
  federation_.run_for(10 * kSecond);
  const auto session = federation_.gateway(1).session_with(2);
  ASSERT_NE(session, 0U);
  const auto id = federation_.step_at_hand(1);
  const auto signatures = federation_.gateway(1).counters().signatures_checked;
  const auto relayed = federation_.gateway(1).counters().relayed_messages;
  const auto say = [&](const Ballot& ballot) {
    liar().link(1).send(sign(liar().signer, kLiar, id, ballot).encode());
  };
  Record next;
  next.view = federation_.gateway(1).view();
  for (SiteId site = 1; site <= kSitesMax; ++site) next.next_view.members.push_back(site);
  next.next_view.voters = next.next_view.members;
  for (SiteId i = 0; i < 600; ++i) {
    if (of_next) {
      next.nonce = i;
      say(Promise{i + 2, Vote::Accepted{1, next}, {}});
      say(Propose{i + 2, next});
      say(Accept{i + 2, next});
      federation_.run_for(100 * kMillisecond);
      continue;
    }
    Promise promise{.ballot = 2, .accepted = {}, .held = {}};
    const auto sites = of_members ? 2 : std::min<SiteId>(i + 200, kSitesMax);
    for (SiteId site = 1; site <= sites; ++site)
      promise.held.push_back({.site = site, .root = {}, .tokens = 1, .base = {}});
    promise.held.front().tokens = i;
    if (!of_members) {
      Record record;
      for (const auto& part : record.parts = promise.held) record.view.members.push_back(part.site);
      record.view.voters = record.view.members;
      record.next_view = record.view;
      promise.accepted = Vote::Accepted{1, record};
    }
    say(promise);
    federation_.run_for(100 * kMillisecond);
  }
  ASSERT_EQ(federation_.step_at_hand(1), id);
  EXPECT_GE(federation_.gateway(1).counters().signatures_checked, signatures + 400);
  EXPECT_EQ(federation_.gateway(1).session_with(2), session);
  const auto most = of_members ? 10U : of_next ? 50U : 0U;
  EXPECT_LE(federation_.gateway(1).counters().relayed_messages, relayed + most);
}

INSTANTIATE_TEST_SUITE_P(Votes, WordyVoterTest,
                         testing::Values(Words::of_members, Words::of_invented_sites,
                                         Words::of_a_next_view),
                         [](const auto& test) {
                           return test.param == Words::of_members          ? "OfMembers"
                                  : test.param == Words::of_invented_sites ? "OfInventedSites"
                                                                           : "OfANextView";
                         });

}  // namespace
}  // namespace isthmus::inter

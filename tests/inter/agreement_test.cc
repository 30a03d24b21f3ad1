// The vote on one outer step, explored at random: loss, repetition, reordering, proposers that
// crash and forget, voters that restart from what they had written. Whatever happens, never two
// different decided records; without faults, always one.
#include "inter/agreement.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>

#include "base/random.h"
#include "inter/sim/simulated_keys.h"

namespace isthmus::inter {
namespace {

struct Envelope {
  SiteId from, to;
  Ballot message;
};

// Voters 1…n, all members, in one process; the test moves messages and writes votes.
class Voters {
 public:
  Voters(std::uint32_t n, std::uint32_t min_sites, std::uint64_t seed)
      : random_(seed), min_sites_(min_sites) {
    for (std::uint32_t i = 1; i <= n; ++i) {
      view_.members.push_back(i);
      view_.voters.push_back(i);
      view_.vote_files[i] = 100 + i;
    }
    for (std::uint32_t i = 1; i <= n; ++i) restart(i);
  }

  // A site that lost its disk and contributed again: voters up to `first` hold the first one.
  void contributes_twice(SiteId site, SiteId first) {
    twice_ = site;
    first_ = first;
  }
  Part part(SiteId site, SiteId voter = 0) const {
    Part part;
    if (site == twice_ && voter > first_) part.root.bytes[1] = std::byte{2};
    part.site = site;
    part.root.bytes[0] = static_cast<std::byte>(site);
    part.tokens = 10 * site;
    return part;
  }
  void hold(SiteId voter, SiteId site) {
    voters_[voter]->hold(part(site, voter));
    held_[voter].insert(site);
    speak(voter);
  }
  // The vote is written before anything is said; a crash before that loses both.
  void speak(SiteId voter) {
    auto outgoing = voters_[voter]->take_outgoing();
    written_[voter] = voters_[voter]->vote();
    for (const auto& out : outgoing)
      for (const auto to : view_.voters) network.push_back({voter, to, out.message});
  }
  void restart(SiteId voter) {
    Agreement::Setup setup;
    setup.self = voter;
    setup.frame.step = 1;
    setup.frame.view = view_;
    setup.frame.next_view = view_;
    setup.min_sites = min_sites_;
    for (const auto site : view_.members) setup.roster.insert(site);
    setup.complete = [this](Record& record) { record.next_view = view_; };
    voters_[voter] = std::make_unique<Agreement>(std::move(setup), written_[voter]);
    for (const auto site : held_[voter]) voters_[voter]->hold(part(site, voter));
    speak(voter);
  }
  void deliver(const Envelope& e) {
    voters_[e.to]->receive(e.from, e.message, {});
    // What a proposal names is fetched.
    for (const auto& lacking : std::set<Part>(voters_[e.to]->lacking())) hold(e.to, lacking.site);
    speak(e.to);
    if (const auto& decided = voters_[e.to]->decided()) {
      decided_.insert(decided->record.hash());
      record_ = decided->record;
    }
  }
  void open_ballot(SiteId voter) {
    voters_[voter]->open_ballot();
    speak(voter);
  }
  std::size_t decided() const { return decided_.size(); }
  const Record& record() const { return record_; }
  Agreement& voter(SiteId site) { return *voters_[site]; }

  std::deque<Envelope> network;

 private:
  Random random_;
  std::uint32_t min_sites_;
  SiteId twice_ = 0, first_ = 0;
  View view_;
  std::map<SiteId, std::unique_ptr<Agreement>> voters_;
  std::map<SiteId, Vote> written_;
  std::map<SiteId, std::set<SiteId>> held_;
  std::set<security::Digest> decided_;
  Record record_;
};

TEST(Agreement, InHealthAllVoteAtOnceAndNobodyLeads) {
  Voters voters(3, 3, 1);
  for (SiteId v = 1; v <= 3; ++v)
    for (SiteId s = 1; s <= 3; ++s) voters.hold(v, s);
  std::size_t messages = voters.network.size();
  EXPECT_EQ(messages, 9u);  // one Accept of each to each
  while (!voters.network.empty()) {
    const auto e = voters.network.front();
    voters.network.pop_front();
    voters.deliver(e);
  }
  EXPECT_EQ(voters.decided(), 1u);
  EXPECT_EQ(voters.record().parts.size(), 3u);
  EXPECT_EQ(voters.voter(1).decided()->ballot, 0u);
}

TEST(Agreement, NeverTwoRecordsWhateverHappens) {
  std::uint64_t decided = 0, reproposed = 0, two_values = 0;
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    const auto n = static_cast<std::uint32_t>(2 + random.below(4));
    Voters voters(n, static_cast<std::uint32_t>(1 + random.below(n)), seed);
    if (random.chance(0.3)) {
      voters.contributes_twice(static_cast<SiteId>(1 + random.below(n)),
                               static_cast<SiteId>(1 + random.below(n - 1)));
      ++two_values;
    }
    std::vector<std::pair<SiteId, SiteId>> contributions;
    for (SiteId v = 1; v <= n; ++v)
      for (SiteId s = 1; s <= n; ++s) contributions.emplace_back(v, s);
    const auto events = 50 + random.below(350);
    for (std::uint64_t i = 0; i < events; ++i) {
      const auto dice = random.uniform();
      if (dice < 0.06) {
        voters.open_ballot(static_cast<SiteId>(1 + random.below(n)));
      } else if (dice < 0.10) {
        voters.restart(static_cast<SiteId>(1 + random.below(n)));
      } else if (dice < 0.3 && !contributions.empty()) {
        const auto at = random.below(contributions.size());
        voters.hold(contributions[at].first, contributions[at].second);
        contributions.erase(contributions.begin() + static_cast<std::ptrdiff_t>(at));
      } else if (!voters.network.empty()) {
        const auto at = static_cast<std::ptrdiff_t>(random.below(voters.network.size()));
        const auto e = voters.network[static_cast<std::size_t>(at)];
        const auto fate = random.uniform();
        if (fate < 0.87)
          voters.network.erase(voters.network.begin() + at);  // else it stays, and comes again
        if (fate >= 0.15) voters.deliver(e);                  // else it is lost
      }
      ASSERT_LE(voters.decided(), 1u) << "seed " << seed;
    }
    decided += voters.decided();
    for (SiteId v = 1; v <= n; ++v) reproposed += voters.voter(v).counters().reproposals;
  }
  EXPECT_GT(two_values, 2000u);
  EXPECT_GT(decided, 2000u);
  EXPECT_GT(reproposed, 100u);
}

TEST(Agreement, AProposalNamesWhatAMajorityHoldsAndMostTokens) {
  Voters voters(3, 1, 1);
  // 1 and 2 hold {1, 2}; 3 holds {3}: a majority shares {1, 2}.
  for (SiteId v = 1; v <= 2; ++v)
    for (SiteId s = 1; s <= 2; ++s) voters.hold(v, s);
  voters.hold(3, 3);
  voters.open_ballot(2);
  while (!voters.network.empty()) {
    const auto e = voters.network.front();
    voters.network.pop_front();
    voters.deliver(e);
  }
  ASSERT_EQ(voters.decided(), 1u);
  EXPECT_GE(voters.record().parts.size(), 2u);
}

// Two values in ballot 0: nothing is proposed while either may be decided, and then the step goes
// on.
TEST(Agreement, TwoContributionsOfOneSiteDoNotStopTheStep) {
  Voters voters(3, 1, 1);
  voters.contributes_twice(3, 1);
  for (SiteId v = 1; v <= 2; ++v)
    for (SiteId s = 1; s <= 3; ++s) voters.hold(v, s);
  // 3 has lost its vote and says nothing yet.
  const auto settle = [&] {
    while (!voters.network.empty()) {
      const auto e = voters.network.front();
      voters.network.pop_front();
      if (e.from != 3) voters.deliver(e);
    }
  };
  settle();
  EXPECT_EQ(voters.decided(), 0u);
  voters.open_ballot(2);
  settle();
  EXPECT_EQ(voters.decided(), 0u) << "3 may have voted for either";
  for (SiteId s = 1; s <= 2; ++s) voters.hold(3, s);
  voters.open_ballot(2);
  while (!voters.network.empty()) {
    const auto e = voters.network.front();
    voters.network.pop_front();
    voters.deliver(e);
  }
  ASSERT_EQ(voters.decided(), 1u);
  EXPECT_GE(voters.record().parts.size(), 2u);
}

// One voter of three has voted in a ballot that came to nothing. As long as another one may have,
// that record is proposed again; when it has not, any other may be.
TEST(Agreement, WhatTooFewAcceptedHoldsNothingUp) {
  for (const bool others_promise : {false, true}) {
    Voters voters(3, 1, 1);
    for (SiteId s = 1; s <= 3; ++s) voters.hold(1, s);  // it votes in ballot 0
    for (SiteId v = 2; v <= 3; ++v) voters.hold(v, 2);
    voters.network.clear();
    auto& leader = voters.voter(2);
    voters.open_ballot(2);
    const auto ballot = leader.ballot_opened();
    const auto part = voters.part(2);
    leader.receive(2, Promise{ballot, std::nullopt, {part}}, {});
    if (others_promise) leader.receive(3, Promise{ballot, std::nullopt, {part}}, {});
    leader.receive(1, Promise{ballot, voters.voter(1).vote().accepted, {part}}, {});
    // With 3 silent, it and 1 may be a majority for that record.
    EXPECT_EQ(leader.counters().reproposals, others_promise ? 0U : 1U);
    EXPECT_EQ(leader.counters().proposals, others_promise ? 1U : 0U);
  }
}

// What is passed on may come by two ways, and what was said first last.
TEST(Agreement, OfAVotersPromisesTheOneThatHoldsMostCounts) {
  Voters voters(5, 2, 1);
  for (SiteId s = 1; s <= 2; ++s) voters.hold(1, s);
  voters.open_ballot(1);
  auto& leader = voters.voter(1);
  const auto ballot = leader.ballot_opened();
  const std::vector<Part> less = {voters.part(1)}, more = {voters.part(1), voters.part(2)};
  leader.receive(1, Promise{ballot, std::nullopt, more}, {});
  for (const auto& held : {less, more, less}) leader.receive(2, Promise{ballot, {}, held}, {});
  EXPECT_EQ(leader.counters().proposals, 0U) << "no majority";
  leader.receive(3, Promise{ballot, std::nullopt, more}, {});
  EXPECT_EQ(leader.counters().proposals, 1U);
}

// Who lost its disk contributes once more when nobody has what it made: then nobody needs that.
TEST(Agreement, WhatABallotNamesIsNotLackedOnceItsSiteMadeAnother) {
  Voters voters(3, 1, 1);
  voters.contributes_twice(3, 2);
  auto& voter = voters.voter(1);
  const auto lost = voters.part(3, 1), anew = voters.part(3, 3);
  voter.receive(3, Promise{2, std::nullopt, {lost}}, {});
  EXPECT_EQ(voter.lacking(), std::set<Part>{lost});
  voter.hold(anew);
  EXPECT_TRUE(voter.lacking().empty());
  voter.receive(3, Promise{5, std::nullopt, {lost}}, {});
  EXPECT_TRUE(voter.lacking().empty());
}

TEST(Agreement, AVoteThatIsNotOnDiskYetWaitsForIt) {
  Voters voters(2, 1, 1);
  for (SiteId s = 1; s <= 2; ++s) voters.hold(1, s);
  Agreement::Setup setup;
  setup.self = 1;
  setup.frame = voters.voter(1).vote().accepted->record;
  setup.frame.parts.clear();
  setup.roster = {1, 2};
  Agreement written(setup, voters.voter(1).vote()), unwritten(setup, voters.voter(1).vote(), false);
  EXPECT_EQ(written.take_outgoing().at(0).vote_version, 0u);
  EXPECT_EQ(unwritten.take_outgoing().at(0).vote_version, 1u);
  EXPECT_EQ(unwritten.vote_version(), 1u);
}

TEST(Agreement, AVoteFileChangesInABallotOnly) {
  Voters voters(2, 1, 1);
  Record record;
  record.step = 1;
  record.view = record.next_view = View{{1, 2}, {1, 2}, {{1, 101}, {2, 102}}};
  record.next_view.set_vote_file(2, 900);
  record.parts = {voters.part(1)};
  for (const auto from : {1u, 2u}) voters.voter(1).receive(from, Accept{0, record}, {});
  EXPECT_FALSE(voters.voter(1).decided());
  for (const auto from : {1u, 2u}) voters.voter(1).receive(from, Accept{1, record}, {});
  EXPECT_TRUE(voters.voter(1).decided());
}

TEST(Agreement, BelowMinSitesNothingIsProposed) {
  Voters voters(3, 3, 1);
  for (SiteId v = 1; v <= 3; ++v)
    for (SiteId s = 1; s <= 2; ++s) voters.hold(v, s);
  voters.open_ballot(1);
  while (!voters.network.empty()) {
    const auto e = voters.network.front();
    voters.network.pop_front();
    voters.deliver(e);
  }
  EXPECT_EQ(voters.decided(), 0u);
}

TEST(Agreement, OneWhoMayNotVoteLearnsAndStaysSilent) {
  View view{{1, 2}, {1, 2}, {{1, 5}, {2, 6}}};
  Agreement::Setup setup;
  setup.self = 1;
  setup.may_vote = false;
  setup.frame.step = 1;
  setup.frame.view = view;
  setup.frame.next_view = view;
  setup.roster = {1, 2};
  Agreement agreement(setup, {});
  agreement.hold({1, {}, 1, {}});
  agreement.hold({2, {}, 1, {}});
  agreement.open_ballot();
  EXPECT_TRUE(agreement.take_outgoing().empty());
}

// A roster may be replaced while the vote on the record that names it is under way: whoever had it
// votes for it all the same, else two voters of which one has accepted it would stand still.
TEST(Agreement, RecordsMayNameEachRosterThatThisSiteHad) {
  const auto roster = [](int number) {
    return security::blake2b(std::as_bytes(std::span(&number, 1)));
  };
  const auto votes_for = [](const Record& record, Agreement::Setup setup) {
    setup.self = 1;
    setup.frame = record;
    setup.frame.parts.clear();
    setup.frame.next_view = record.view;
    setup.frame.roster = {};
    Agreement agreement(setup, {});
    agreement.hold(record.parts.front());
    agreement.receive(2, Propose{1, record}, {});
    return agreement.vote().accepted.has_value();
  };
  Record record;
  record.step = 1;
  record.view = View{{1, 2}, {1, 2}, {{1, 101}, {2, 102}}};
  record.next_view = View{{1, 2, 3}, {1}, {{1, 101}, {2, 102}, {3, 103}}};
  record.parts = {{.site = 1, .root = {}, .tokens = 10, .base = {}}};
  record.roster = roster(2);
  Agreement::Setup setup;
  setup.roster = {1, 2, 3};
  setup.newer_rosters = {{roster(2), {1}}, {roster(3), {1, 2}}};
  EXPECT_TRUE(votes_for(record, setup));
  record.next_view.voters = {1, 2};
  EXPECT_FALSE(votes_for(record, setup)) << "the other one's voters";
  record.roster = roster(3);
  EXPECT_TRUE(votes_for(record, setup));
  record.roster = roster(4);
  EXPECT_FALSE(votes_for(record, setup)) << "this site never had it";
}

TEST(Agreement, RefusesRecordsOfAnotherStepViewOrRule) {
  Voters voters(2, 1, 1);
  Record record;
  record.step = 1;
  record.view = record.next_view = View{{1, 2}, {1, 2}, {{1, 101}, {2, 102}}};
  record.parts = {voters.part(1)};
  auto other = record;
  other.rule = {OuterRuleKind::nesterov, 0.7f, 0.9f};
  for (const auto from : {1u, 2u}) voters.voter(1).receive(from, Accept{1, other}, {});
  EXPECT_FALSE(voters.voter(1).decided());
  other = record;
  other.step = 2;
  for (const auto from : {1u, 2u}) voters.voter(1).receive(from, Accept{1, other}, {});
  EXPECT_FALSE(voters.voter(1).decided());
  other = record;
  other.next_view.voters = {1};
  for (const auto from : {1u, 2u}) voters.voter(1).receive(from, Accept{1, other}, {});
  EXPECT_FALSE(voters.voter(1).decided());
  for (const auto from : {1u, 2u}) voters.voter(1).receive(from, Accept{1, record}, {});
  EXPECT_TRUE(voters.voter(1).decided());
}

// Fourteen of twenty-five voters hold the same; of the others each holds more tokens that nobody
// else has.
TEST(Agreement, WhatAMajorityHoldsIsProposedAmongManyVoters) {
  for (const SiteId voters : {5, 25}) {
    View view;
    for (SiteId site = 1; site <= voters; ++site) {
      view.members.push_back(site);
      view.voters.push_back(site);
    }
    Agreement::Setup setup;
    setup.self = 1;
    setup.frame.step = 1;
    setup.frame.view = view;
    setup.frame.next_view = view;
    setup.min_sites = 2;
    setup.roster.insert(view.members.begin(), view.members.end());
    setup.complete = [](Record&) {};
    Agreement agreement(std::move(setup), Vote());
    agreement.open_ballot();
    agreement.take_outgoing();
    const auto part = [](SiteId site, std::uint64_t tokens) {
      return Part{.site = site, .root = {}, .tokens = tokens, .base = {}};
    };
    const auto others = (voters - 1) / 2;  // a minority
    for (SiteId from = 1; from <= voters; ++from) {
      Promise promise{.ballot = agreement.ballot_opened(), .accepted = {}, .held = {}};
      if (from <= others)
        promise.held = {part(from, 1000)};
      else
        promise.held = {part(voters - 1, 1), part(voters, 1)};
      agreement.receive(from, promise, {});
    }
    bool proposed = false;
    for (const auto& out : agreement.take_outgoing())
      proposed |= std::holds_alternative<Propose>(out.message);
    EXPECT_TRUE(proposed) << voters << " voters";
  }
}

}  // namespace
}  // namespace isthmus::inter

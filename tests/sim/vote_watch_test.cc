// What VoteWatch must notice, said by hand.
#include "inter/sim/vote_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "inter/messages.h"

namespace isthmus::inter::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const View kView{.members = {1, 2, 3}, .voters = {1, 2, 3}, .vote_files = {{1, 7}, {2, 8}, {3, 9}}};

Record record(std::uint64_t tokens) {
  Record record;
  record.step = 5;
  record.view = kView;
  record.next_view = kView;
  record.parts.push_back({.site = 1, .root = {}, .tokens = tokens, .base = {}});
  return record;
}

class VoteWatchTest : public testing::Test {
 protected:
  void accepts(SiteId site, std::uint64_t ballot, const Record& value) {
    watch_.signed_by(site, security::context::accept, accept_body(value, ballot));
  }
  void promises(SiteId site, std::uint64_t ballot, std::optional<Vote::Accepted> accepted = {}) {
    watch_.signed_by(site, security::context::promise,
                     encode(id_, Promise{ballot, std::move(accepted), {}}));
  }
  void proposes(SiteId site, std::uint64_t ballot, const Record& value) {
    watch_.signed_by(site, security::context::propose, encode(id_, Propose{ballot, value}));
  }
  void holds(SiteId holder, SiteId origin, std::byte root) {
    Part part{.site = origin, .root = {}, .tokens = 1, .base = {}};
    part.root.bytes[0] = root;
    watch_.holds(holder, kView, 5, part);
  }

  const StepId id_{.run = {}, .view = kView.digest(), .step = 5, .fragment = 0};
  std::vector<std::string> violations_;
  VoteWatch watch_{false, [this](const std::string& what) { violations_.push_back(what); }};
};

TEST_F(VoteWatchTest, WhatIsAllowed) {
  accepts(1, 0, record(1));
  accepts(1, 0, record(1));  // again
  promises(1, 4, Vote::Accepted{0, record(1)});
  accepts(1, 0, record(1));  // of before, and told
  accepts(1, 4, record(2));
  promises(1, 4, Vote::Accepted{4, record(2)});
  promises(2, 3);
  accepts(2, 3, record(2));
  proposes(2, 4, record(2));
  proposes(2, 4, record(2));
  holds(1, 1, std::byte{7});
  holds(2, 1, std::byte{7});
  holds(2, 2, std::byte{8});
  watch_.wiped(2);
  holds(2, 2, std::byte{9});  // nobody else had the first one
  watch_.knows(kView);
  watch_.check_decided();
  EXPECT_THAT(violations_, IsEmpty());
}

TEST_F(VoteWatchTest, TwoVotesInOneBallot) {
  accepts(1, 0, record(1));
  accepts(1, 0, record(2));
  EXPECT_THAT(violations_, ElementsAre(HasSubstr("s1 voted for two records in ballot 0")));
}

TEST_F(VoteWatchTest, AVoteBelowAPromise) {
  promises(1, 4);
  accepts(1, 3, record(1));
  EXPECT_THAT(violations_,
              ElementsAre(HasSubstr("voted in ballot 3 of step 5 and had promised 4")));
}

TEST_F(VoteWatchTest, APromiseThatConcealsAVote) {
  accepts(1, 1, record(1));
  promises(1, 4);
  promises(1, 5, Vote::Accepted{0, record(2)});
  EXPECT_THAT(violations_, ElementsAre(HasSubstr("did not say that it had voted in 1"),
                                       HasSubstr("did not say that it had voted in 1")));
}

TEST_F(VoteWatchTest, APromiseThatNamesAnotherRecord) {
  accepts(1, 1, record(1));
  promises(1, 4, Vote::Accepted{1, record(2)});
  EXPECT_THAT(violations_, ElementsAre(HasSubstr("s1 voted for two records in ballot 1")));
}

TEST_F(VoteWatchTest, AVoteForAnotherRecordThanAPromiseNamed) {
  promises(1, 4, Vote::Accepted{1, record(1)});
  accepts(1, 1, record(2));
  EXPECT_THAT(violations_, ElementsAre(HasSubstr("s1 voted for two records in ballot 1")));
}

TEST_F(VoteWatchTest, WhatAPromiseNamedIsNotConcealedLater) {
  promises(1, 4, Vote::Accepted{1, record(1)});
  promises(1, 5);
  EXPECT_THAT(violations_, ElementsAre(HasSubstr("did not say that it had voted in 1")));
}

TEST_F(VoteWatchTest, TwoProposalsInOneBallot) {
  proposes(2, 4, record(1));
  proposes(2, 4, record(2));
  EXPECT_THAT(violations_, ElementsAre(HasSubstr("s2 proposed two records in ballot 4")));
}

TEST_F(VoteWatchTest, TwoContributionsToOneStep) {
  holds(1, 1, std::byte{7});
  holds(2, 1, std::byte{7});
  watch_.wiped(1);
  holds(1, 1, std::byte{8});
  EXPECT_THAT(violations_, ElementsAre(HasSubstr("two contributions of s1 to step 5 are held")));
}

// Each vote is fine by itself: s2 forgot its first one, and nobody saw that.
TEST_F(VoteWatchTest, TwoDecisions) {
  accepts(1, 0, record(1));
  accepts(2, 0, record(1));
  accepts(3, 4, record(2));
  accepts(2, 4, record(2));
  watch_.knows(kView);
  watch_.check_decided();
  EXPECT_THAT(violations_, ElementsAre(HasSubstr("decided two records for step 5")));
}

}  // namespace
}  // namespace isthmus::inter::sim

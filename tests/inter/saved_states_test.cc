#include "inter/saved_states.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "inter/sim/simulated_keys.h"

namespace isthmus::inter {
namespace {

constexpr SiteId kSelf = 1;

security::Digest root(int number) {
  security::Digest digest;
  digest.bytes[0] = static_cast<std::byte>(number);
  return digest;
}

class SavedStatesTest : public testing::Test {
 protected:
  // Whether it is news.
  bool says(SiteId site, std::uint64_t step, int state, std::uint32_t revision = 0,
            bool itself = true) {
    Saved saved{.id = {}, .state_root = root(state), .strong_root = {}, .spot_root = {}};
    saved.id.step = step;
    saved.revision = revision;
    return note(site, saved, itself);
  }
  bool says_spots(SiteId site, int state, int spots) {
    Saved saved{.id = {}, .state_root = root(state), .strong_root = {}, .spot_root = root(spots)};
    saved.id.step = 5;
    return note(site, saved, true);
  }
  bool note(SiteId site, const Saved& saved, bool itself) {
    const sim::SimulatedSigner signer(site);
    return states.note(sign(signer, site, MessageType::saved, encode(saved)), saved, itself);
  }
  static View view() {
    View view;
    view.voters = {1, 2, 3, 4};
    view.members = {1, 2, 3, 4, 5};
    return view;
  }

  SavedStates states{kSelf};
};

TEST_F(SavedStatesTest, WhatIsNewerCounts) {
  EXPECT_EQ(states.of(2), nullptr);
  EXPECT_TRUE(says(2, 5, 1));
  EXPECT_FALSE(says(2, 5, 1)) << "the same";
  EXPECT_FALSE(says(2, 4, 2));
  EXPECT_TRUE(says(2, 6, 2));
  EXPECT_EQ(states.of(2)->saved.state_root, root(2));
}

TEST_F(SavedStatesTest, OfOneStepWhatIsPassedOnCountsByItsRevision) {
  EXPECT_TRUE(says(2, 5, 1, 1, false));
  EXPECT_FALSE(says(2, 5, 2, 0, false));
  EXPECT_FALSE(says(2, 5, 2, 1, false));
  EXPECT_TRUE(says(2, 5, 2, 2, false));
  EXPECT_TRUE(says(2, 5, 3, 0, true)) << "it has begun anew";
}

TEST_F(SavedStatesTest, WhatThisSiteSaysAnewHasTheNextRevision) {
  EXPECT_EQ(states.next_revision(5), 0U);
  EXPECT_TRUE(says(kSelf, 5, 1));
  EXPECT_EQ(states.next_revision(5), 1U);
  EXPECT_EQ(states.next_revision(6), 0U);
}

TEST_F(SavedStatesTest, AMajorityIsOfTheVoters) {
  says(1, 9, 1);
  says(2, 8, 1);
  says(5, 9, 1);
  EXPECT_EQ(states.saved_by_majority(view()), 0U);
  says(3, 7, 1);
  EXPECT_EQ(states.saved_by_majority(view()), 7U);
}

TEST_F(SavedStatesTest, OthersVouch) {
  says(1, 5, 1);
  says(2, 5, 1);
  says(3, 5, 2);
  says(4, 6, 1);
  says(5, 5, 1);
  EXPECT_EQ(states.vouching(view(), 5, root(1)), 1U);
}

TEST_F(SavedStatesTest, StrongRootsThatDifferAreSeenWhereQuickOnesAreEqual) {
  says_spots(2, 1, 1);
  EXPECT_TRUE(states.differing_spots(2).empty()) << "this site has said nothing yet";
  says_spots(kSelf, 1, 2);
  says_spots(3, 1, 2);
  says_spots(4, 7, 3);
  EXPECT_THAT(states.differing_spots(kSelf), testing::ElementsAre(2));
  EXPECT_THAT(states.differing_spots(2), testing::ElementsAre(2));
  EXPECT_TRUE(states.differing_spots(3).empty());
}

TEST_F(SavedStatesTest, WhatIsSaidAnewIsPassedOnTwiceASecondAtMost) {
  Nanoseconds now = 100 * kSecond;
  EXPECT_TRUE(states.passes_on(2, 5, 7, now));
  EXPECT_TRUE(states.passes_on(2, 6, 7, now)) << "another step";
  EXPECT_FALSE(states.passes_on(2, 6, 7, now));
  EXPECT_FALSE(states.passes_on(2, 99, 7, now)) << "of no step that can be";
  says(2, 6, 1);
  says(2, 6, 2);
  EXPECT_TRUE(states.due(now).empty());
  now += kSecond / 2;
  const auto due = states.due(now);
  ASSERT_EQ(due.size(), 1U);
  EXPECT_EQ(decode_saved(due[0]->body)->state_root, root(2)) << "the last";
  EXPECT_TRUE(states.due(now).empty());
}

}  // namespace
}  // namespace isthmus::inter

// What is kept, and passed on, of what a site has said in a step.
#include "inter/said_in_step.h"

#include <gtest/gtest.h>

#include <vector>

#include "inter/sim/simulated_keys.h"

namespace isthmus::inter {
namespace {

class SaidInStepTest : public testing::Test {
 protected:
  Signed said(const Ballot& ballot) { return sign(signer_, 1, StepId{}, ballot); }
  // That it has so much, from this site on.
  Signed promise(std::uint64_t ballot, std::size_t held, SiteId first = 1) {
    Promise promise{.ballot = ballot, .accepted = {}, .held = {}};
    for (SiteId i = 0; i < held; ++i)
      promise.held.push_back({.site = first + i, .root = {}, .base = {}});
    return said(promise);
  }
  std::vector<Signed> kept() const {
    std::vector<Signed> all;
    all_.each([&](const Signed& message) { all.push_back(message); });
    return all;
  }

  const sim::SimulatedSigner signer_{1};
  SaidInStep all_;
};

TEST_F(SaidInStepTest, OfAVotersPromisesTheLastIsKept) {
  const auto less = promise(3, 1), more = promise(3, 2);
  EXPECT_TRUE(all_.note(less));
  EXPECT_TRUE(all_.note(more));
  EXPECT_FALSE(all_.note(less)) << "over another way, later";
  EXPECT_FALSE(all_.note(promise(3, 2, 5))) << "for ever in turn";
  ASSERT_EQ(kept().size(), 1U);
  EXPECT_EQ(kept().front().digest(), more.digest());
  EXPECT_TRUE(all_.note(promise(4, 0)));
  EXPECT_FALSE(all_.note(promise(3, 9)));
  EXPECT_EQ(kept().size(), 1U);
}

TEST_F(SaidInStepTest, OfWhatASiteMaySignForEverLittleIsKept) {
  for (std::uint64_t i = 0; i < 100; ++i) {
    Record record;
    record.nonce = i;
    record.parent.bytes[0] = static_cast<std::byte>(i);
    all_.note(said(Propose{2, record}));
    all_.note(said(Accept{2, record}));
    all_.note(promise(2, i));
    Open open;
    open.attempt = i;
    all_.note(sign(signer_, 1, MessageType::open, encode(open)));
  }
  EXPECT_EQ(kept().size(), 2 * SaidInStep::kInBallotMax + 2);
}

TEST_F(SaidInStepTest, WhatIsSaidAnewTooSoonIsPassedOnLater) {
  const auto pass_on = [&](const Signed& message, Nanoseconds now) {
    EXPECT_TRUE(all_.note(message));
    return all_.passes_on(message, now);
  };
  EXPECT_TRUE(pass_on(promise(2, 1), kSecond));
  EXPECT_TRUE(pass_on(said(Prepare{2}), kSecond)) << "of another kind";
  EXPECT_FALSE(pass_on(promise(2, 2), 1100 * kMillisecond));
  EXPECT_FALSE(pass_on(promise(2, 3), 1200 * kMillisecond));
  EXPECT_TRUE(all_.due(1400 * kMillisecond).empty());
  const auto due = all_.due(1500 * kMillisecond);
  ASSERT_EQ(due.size(), 1U);
  EXPECT_EQ(due.front()->digest(), promise(2, 3).digest()) << "the last of them";
  EXPECT_TRUE(all_.due(5 * kSecond).empty());
}

// Of whatever kind, in whatever ballot: after 32 KiB, 1 KiB each second.
TEST_F(SaidInStepTest, OfAllThatASiteSignsAThinLineTakesThePart) {
  std::size_t passed_on = 0;
  Record record;
  for (SiteId site = 1; site <= 256; ++site) record.next_view.members.push_back(site);
  constexpr Nanoseconds kTime = 100 * kSecond;
  for (Nanoseconds now = 0; now < kTime; now += 100 * kMillisecond) {
    record.nonce = static_cast<std::uint64_t>(now);
    const auto ballot = static_cast<std::uint64_t>(now / kMillisecond + 1);
    for (const auto& message :
         {said(Prepare{ballot}), said(Promise{ballot, Vote::Accepted{1, record}, {}}),
          said(Propose{ballot, record}), said(Accept{ballot, record})}) {
      EXPECT_TRUE(all_.note(message));
      if (all_.passes_on(message, now)) passed_on += message.body.size();
    }
    for (const auto* message : all_.due(now)) passed_on += message->body.size();
  }
  EXPECT_GE(passed_on, (32U << 10) + (99U << 10));
  EXPECT_LE(passed_on, (32U << 10) + (104U << 10));
  all_.clear();
  EXPECT_TRUE(all_.note(said(Prepare{1})));
  EXPECT_TRUE(all_.passes_on(said(Prepare{1}), kTime)) << "a step later";
}

}  // namespace
}  // namespace isthmus::inter

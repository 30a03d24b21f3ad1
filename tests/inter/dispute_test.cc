// Sites that say to hold different states of one step: what one voter's word can and cannot do, and
// what the ranks of a site see of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tests/inter/scripted_federation.h"

namespace isthmus::inter {
namespace {

// Disks are slow, so that a site is long between a state and the word that it is saved, and ranks
// are quick, so that they contribute in between.
ScriptedFederation::Options with_slow_disks(std::size_t sites) {
  auto options = options_of(std::vector<Nanoseconds>(sites, 20 * kMillisecond));
  options.gateway.sync.min_sites = 2;
  options.gateway.sync.outer_steps = 100'000;
  return options;
}

void slow_down(ScriptedFederation& federation, SiteId site) {
  federation.disk(site).set_speed({.sync = 100 * kMillisecond});
}

constexpr SiteId kFalseVoter = 3;

// The last of three voters says of each step that it has saved another state: before the others
// have made that step, or afterwards.
class FalseVoterTest : public testing::Test {
 protected:
  void start(std::uint32_t min_sites) {
    auto options = with_slow_disks(3);
    options.puppets = {kFalseVoter};
    options.gateway.sync.min_sites = min_sites;
    options.adjust = [this](SiteId site, GatewayOptions& own) {
      own.disturb = [this, site](std::uint64_t step, std::span<float> agreed) {
        if (++made_[{site, step}] > 1 && step == wrong_again_ && site == 1) agreed[0] += 1;
      };
    };
    federation_.emplace(std::move(options));
    for (const SiteId site : {1, 2}) slow_down(*federation_, site);
    puppet().heard = [this](Link& from, MessageType type, ByteReader& in) {
      puppet().vote_for_run(from, type, in);
      if (type == MessageType::status) lie(from, in);
    };
  }
  void lie(Link& from, ByteReader& in) {
    const auto theirs = decode_status(in);
    if (!theirs) return;
    Status mine;
    mine.step = theirs->step;
    mine.vote_file = 77;
    mine.sees = {1, 2};
    from.send(encode(mine));
    auto genesis = federation_->gateway(from.peer().site).genesis();
    if (!genesis || theirs->step <= 1) return;
    Saved saved{.id = {}, .state_root = {}, .strong_root = {}, .spot_root = {}};
    saved.id.run = genesis->record.hash();
    saved.id.step = ahead_ ? theirs->step : theirs->step - 1;
    saved.state_root.bytes[0] = std::byte{1};
    from.send(sign(puppet().signer, kFalseVoter, MessageType::saved, encode(saved)).encode());
  }
  Puppet& puppet() { return federation_->puppet(kFalseVoter); }
  // Its ranks go, and its disk takes no state any more. The step that the first one comes to
  // alone.
  std::uint64_t silence_other() {
    EXPECT_TRUE(reach(6));
    federation_->end_ranks(2);
    ahead_ = false;
    EXPECT_TRUE(reach(10));
    federation_->disk(2).set_faults({.full_for = "outer/state."});
    EXPECT_TRUE(federation_->run_until(
        [&] {
          return federation_->step(2) > federation_->gateway(2).saved_step() &&
                 federation_->step(1) > federation_->step(2);
        },
        60 * kSecond));
    return federation_->step(1);
  }
  bool reach(std::uint64_t step) {
    return federation_->run_until(
        [&] { return federation_->step(1) >= step && federation_->step(2) >= step; },
        600 * kSecond);
  }

  std::map<std::pair<SiteId, std::uint64_t>, int> made_;  // how often, by site and step
  std::uint64_t wrong_again_ = 0;  // that the first one computes rightly at first, and then wrongly
  bool ahead_ = true;
  std::optional<ScriptedFederation> federation_;
};

TEST_F(FalseVoterTest, StopsNoRanksAndHasNothingComputedAgain) {
  start(2);
  ASSERT_TRUE(reach(20));
  ahead_ = false;
  ASSERT_TRUE(reach(40));
  for (const SiteId site : {1, 2}) {
    EXPECT_GE(made_.size(), 2 * 39U);
    EXPECT_EQ(federation_->events(site, "state_disputed"), 0U) << site;
  }
  for (const auto& [of, times] : made_) EXPECT_EQ(times, 1) << of.first << ", step " << of.second;
}

// The second one cannot save what it has: it is waited for, and then the first one looks for a
// fault of its own. It does not end, as the second one may still say who is right.
TEST_F(FalseVoterTest, IsDoubtedAfterAWhileWhereTheOtherSaysNothing) {
  start(1);
  const auto step = silence_other();
  federation_->run_for(8 * kSecond);
  EXPECT_EQ(federation_->events(1, "state_disputed"), 0U);
  EXPECT_EQ((made_[{1, step}]), 1);
  federation_->run_for(8 * kSecond);
  EXPECT_EQ(federation_->events(1, "state_computed_again"), 1U);
  EXPECT_EQ((made_[{1, step}]), 2);
  EXPECT_THAT(federation_->gateway(1).status().attention,
              testing::Contains(testing::HasSubstr("differs from that of others")));
  federation_->run_for(300 * kSecond);
  EXPECT_FALSE(federation_->process(1).failure());
  federation_->disk(2).set_faults({});
  EXPECT_TRUE(reach(step + 3));
}

// Nor while that one is away.
TEST_F(FalseVoterTest, EndsNobodyWhileTheOtherIsAway) {
  start(1);
  const auto step = silence_other();
  federation_->kill(2);
  federation_->run_for(300 * kSecond);
  EXPECT_FALSE(federation_->process(1).failure());
  EXPECT_EQ(federation_->step(1), step);
  federation_->disk(2).set_faults({});
  federation_->start(2);
  EXPECT_TRUE(reach(step + 3));
}

// The first one computes its state again, wrongly and twice alike. Before it can go on from that
// the second one has said that the first result was right.
TEST_F(FalseVoterTest, IsOutvotedBeforeAStateIsReplaced) {
  wrong_again_ = 6;
  ahead_ = false;
  start(2);
  for (const SiteId site : {1, 2}) {
    ASSERT_TRUE(federation_->run_until([&] { return federation_->step(site) >= 6; }, 60 * kSecond));
    federation_->disk(site).set_speed({.sync = (site == 1 ? 8 : 5) * kSecond});
  }
  federation_->end_ranks(2);  // what they give next would say it, too
  ASSERT_EQ(federation_->step(1), 6U);
  ASSERT_TRUE(federation_->run_until([&] { return made_[{1, 6}] == 3; }, 60 * kSecond));
  ASSERT_LT(federation_->gateway(2).saved_step(), 6U);
  for (const SiteId site : {1, 2}) federation_->disk(site).set_speed({.sync = kSecond});
  federation_->ranks(2).attach(federation_->gateway(2));
  EXPECT_TRUE(reach(9));
  EXPECT_EQ(federation_->events(1, "state_replaced"), 0U);
}

// Of two sites one computed a step wrongly and finds out while its ranks are at work.
class ReplacedStateTest : public testing::Test {
 protected:
  static ScriptedFederation::Options options() {
    auto options = with_slow_disks(2);
    options.compute[0] = kSecond;
    options.adjust = [](SiteId site, GatewayOptions& own) {
      if (site != 1) return;
      own.disturb = [made = 0](std::uint64_t step, std::span<float> agreed) mutable {
        if (step == 4 && made++ == 0) agreed[0] += 1;
      };
    };
    return options;
  }
  ReplacedStateTest() : federation_(options()) {
    federation_.disk(1).set_speed({.sync = kSecond});  // its state is still being saved then
  }
  bool until(const std::function<bool()>& condition) {
    return federation_.run_until(condition, 600 * kSecond);
  }
  bool replaced() const { return federation_.events(1, "state_replaced") > 0; }
  void expect_that_all_go_on() {
    EXPECT_TRUE(until([&] { return federation_.step(1) >= 8 && federation_.step(2) >= 8; }));
    EXPECT_EQ(federation_.events(1, "state_replaced"), 1U);
  }

  ScriptedFederation federation_;
};

// What they hand over while the state is replaced is taken once it is.
TEST_F(ReplacedStateTest, RanksThatContributeMeanwhileGoOn) { expect_that_all_go_on(); }

TEST_F(ReplacedStateTest, RanksThatAttachMeanwhileGoOn) {
  ASSERT_TRUE(until([&] { return replaced(); }));
  federation_.end_ranks(1);
  federation_.ranks(1).restart();
  federation_.ranks(1).attach(federation_.gateway(1));
  expect_that_all_go_on();
}

}  // namespace
}  // namespace isthmus::inter

// A contribution that comes slowly from where it comes, and quickly from others that have it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "tests/inter/hand_made.h"
#include "tests/inter/hostile_peer.h"

namespace isthmus::inter {
namespace {

// Of a contribution, as far as it is let.
class Drip final : public ChunkSource {
 public:
  explicit Drip(std::shared_ptr<Contribution> all) : all_(std::move(all)) {}
  ChunkBytes chunk(std::uint32_t index) override {
    return index < let_ ? all_->chunk(index) : ChunkBytes();
  }
  void let_one() { ++let_; }

 private:
  std::shared_ptr<Contribution> all_;
  std::uint32_t let_ = 1;
};

// A member gives what it contributes to all at once, and to one a chunk within each patience: of
// the same attempt, of another one, or of none but that it announces one after the other.
enum class Dripped { the_same, another, none };

class DrippingMemberTest : public HostilePeerTest, public testing::WithParamInterface<Dripped> {
 protected:
  static constexpr SiteId kMember = 1, kVictim = 4;
  static constexpr std::uint64_t kAttempt = 7;

  DrippingMemberTest() : federation_(options()) {
    const auto with = options();
    plan_ = std::make_shared<ChunkPlan>(federation_.layout(), 0, with.gateway.sync.chunk_elements,
                                        with.gateway.sync.codec);
    member().heard = [this](Link& from, MessageType type, ByteReader& in) {
      contribute(from, Puppet::follow_as_member(from, type, in));
    };
  }
  static ScriptedFederation::Options options() {
    auto options = endless_with_puppet();
    options.without_vote = {kMember, kVictim};
    options.elements = 64 * 256;
    return options;
  }
  Puppet& member() { return federation_.puppet(kMember); }
  void contribute(Link& from, std::uint64_t step) {
    auto& gateway = federation_.gateway(2);
    if (!gateway.state() || gateway.state()->step + 1 != step ||
        !gateway.view().is_member(kMember) || !told_.insert({from.peer().site, step}).second)
      return;
    if (!made_.contains(step))
      made_[step] = hand_made(
          plan_, member().signer, kMember, gateway, [](auto...) {}, kAttempt);
    const auto& made = made_.at(step);
    if (from.peer().site != kVictim) return made.offer_to(from);
    auto dripped = made;
    if (GetParam() != Dripped::the_same)
      dripped = hand_made(
          plan_, member().signer, kMember, gateway, [](auto...) {}, kAttempt + 1);
    from.send(dripped.all->announcement().encode());
    announced_ = dripped.all->open();
    if (GetParam() == Dripped::none) return;
    dripping_ = std::make_shared<Drip>(dripped.all);
    from.offer(dripped.all->transfer(), step, plan_->chunks(), dripping_, false);
    from.send(dripped.close.encode());
  }
  void run_for(Nanoseconds time) {
    const auto apart = GetParam() == Dripped::none ? 500 * kMillisecond : 4900 * kMillisecond;
    for (const auto end = federation_.now() + time; federation_.now() < end;) {
      federation_.run_for(apart);
      if (dripping_) dripping_->let_one();
      member().link(kVictim).poke();
      if (GetParam() != Dripped::none || !announced_) continue;
      ++announced_->attempt;
      member().link(kVictim).send(
          sign(member().signer, kMember, MessageType::open, encode(*announced_)).encode());
    }
  }

  ScriptedFederation federation_;
  std::shared_ptr<const ChunkPlan> plan_;
  std::map<std::uint64_t, HandMade> made_;
  std::set<std::pair<SiteId, std::uint64_t>> told_;
  std::shared_ptr<Drip> dripping_;
  std::optional<Open> announced_;  // to that one, the last
};

TEST_P(DrippingMemberTest, KeepsNobodyBehind) {
  run_for(300 * kSecond);
  const auto named = std::ranges::count_if(
      federation_.gateway(2).chain(),
      [](const auto& certificate) { return certificate.record.part_of(kMember) != nullptr; });
  EXPECT_GE(named, 10);
  EXPECT_GE(federation_.step(2), 20U);
  EXPECT_GE(federation_.step(kVictim) + 1, federation_.step(2));
  EXPECT_TRUE(federation_.gateway(2).view().is_member(kVictim));
  EXPECT_EQ(federation_.gateway(kVictim).counters().state_fetches, 0U);
}

INSTANTIATE_TEST_SUITE_P(Dripped, DrippingMemberTest,
                         testing::Values(Dripped::the_same, Dripped::another, Dripped::none),
                         [](const auto& test) {
                           return test.param == Dripped::the_same  ? "TheSame"
                                  : test.param == Dripped::another ? "AnotherAttempt"
                                                                   : "AttemptsWithoutEnd";
                         });

// Where it is the site's own line that is thin, one that has not sent anything yet is tried, and
// nothing comes twice.
TEST(ThinLineTest, CarriesNoCopiesFromSourcesThatAreNoFaster) {
  constexpr SiteId kThin = 4, kTried = 5;
  auto options = options_of({kSecond, kSecond, kSecond, kSecond, kSecond});
  options.without_vote = {kThin, kTried};
  options.elements = 1'000'000;
  options.gateway.sync.chunk_elements = 1 << 13;
  options.gateway.sync.outer_steps = 100'000;
  ScriptedFederation federation(std::move(options));
  const auto step = [&](SiteId site) { return federation.step(site); };
  const auto reaches = [&](std::uint64_t wanted) {
    return federation.run_until([&] { return step(1) >= wanted; }, 600 * kSecond);
  };
  ASSERT_TRUE(reaches(2));
  federation.end_ranks(kTried);  // it holds what others contribute
  ASSERT_TRUE(federation.run_until([&] { return !federation.gateway(1).view().is_member(kTried); },
                                   600 * kSecond));
  ASSERT_TRUE(reaches(step(1) + 2));
  federation.cut_off(kThin, true);
  ASSERT_TRUE(reaches(step(kThin) + 1));
  for (SiteId site = 1; site <= 4; ++site) federation.end_ranks(site);
  federation.run_for(30 * kSecond);
  ASSERT_EQ(step(1) - step(kThin), 1U);
  const auto tried = [&] { return federation.gateway(kTried).counters().relayed; };
  const auto received = [&] {
    std::uint64_t bytes = 0;
    for (const auto& link : federation.gateway(kThin).status().links)
      bytes += link.wire_received_bytes;
    return bytes;
  };
  const auto received_before = received(), tried_before = tried();
  federation.set_access(kThin, 20'000);
  federation.cut_off(kThin, false);
  ASSERT_TRUE(federation.run_until([&] { return step(kThin) == step(1); }, 1200 * kSecond));
  EXPECT_GT(tried(), tried_before);
  const auto bytes = received() - received_before;
  EXPECT_GE(bytes, 3 * 640'000U) << "what three sites contributed, packed";
  EXPECT_LE(bytes, 3 * 720'000U);
}

}  // namespace
}  // namespace isthmus::inter

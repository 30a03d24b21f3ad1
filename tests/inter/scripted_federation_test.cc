// What gateways do in situations that a seed seldom makes.
#include "tests/inter/scripted_federation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isthmus::inter {
namespace {

ScriptedFederation::Options options_of(std::vector<Nanoseconds> compute) {
  ScriptedFederation::Options options;
  options.compute = std::move(compute);
  options.gateway.sync.outer_steps = 6;
  options.gateway.sync.chunk_elements = 256;
  options.gateway.sync.absent_steps = 2;
  options.gateway.first_wait = 20 * kSecond;
  options.gateway.straggler_wait = 120 * kSecond;
  return options;
}

bool is_member(Gateway& gateway, const std::string& site) {
  const auto members = gateway.status().members;
  return std::ranges::find(members, site) != members.end();
}

// ---- Ranks that are gone, or hang

class DeadRanksTest : public testing::TestWithParam<bool> {};

TEST_P(DeadRanksTest, AreNoProgressAndTheirSiteIsOutUntilTheyCompute) {
  auto options = options_of({2 * kSecond, 2 * kSecond, 2 * kSecond});
  options.voters = 2;
  options.gateway.sync.outer_steps = 1000;
  ScriptedFederation federation(std::move(options));
  auto& first = federation.gateway(1);
  auto& third = federation.gateway(3);
  ASSERT_TRUE(federation.run_until(
      [&] { return first.state() && first.state()->step >= 8 && is_member(first, "s3"); },
      300 * kSecond));
  EXPECT_TRUE(third.computes());
  const bool hang = GetParam();
  if (hang)
    federation.ranks(3).detach();  // and the gateway is not told
  else
    federation.end_ranks(3);
  const auto before = first.counters().view_changes;
  const auto step = first.state()->step;
  ASSERT_TRUE(federation.run_until([&] { return !is_member(first, "s3"); }, 300 * kSecond));
  EXPECT_LE(first.state()->step, step + 4);
  federation.run_until([&] { return !third.computes(); }, 60 * kSecond);
  EXPECT_FALSE(third.computes());
  federation.run_for(120 * kSecond);
  EXPECT_EQ(first.counters().view_changes, before + 1);
  EXPECT_FALSE(is_member(first, "s3"));
  // The others do not wait for it any more: some three seconds a step.
  EXPECT_GT(first.state()->step, step + 30);

  federation.ranks(3).attach(third);
  EXPECT_TRUE(federation.run_until([&] { return is_member(first, "s3"); }, 60 * kSecond));
  EXPECT_TRUE(third.computes());
}

INSTANTIATE_TEST_SUITE_P(All, DeadRanksTest, testing::Bool(), [](const auto& chosen) {
  return std::string(chosen.param ? "hang" : "are_gone");
});

// ---- What is waited for

double sum_of(const WaitStatus& waits) {
  return waits.computing_s + waits.transfer_s + waits.straggler_s + waits.agreement_s +
         waits.applying_s;
}

TEST(WaitsTest, ASlowSiteIsWaitedForAsAnotherSite) {
  ScriptedFederation federation(options_of({2 * kSecond, 20 * kSecond}));
  ASSERT_TRUE(federation.run_until([&] { return federation.finished(); }, 1000 * kSecond));
  const auto quick = federation.gateway(1).status().waits;
  EXPECT_GT(quick.straggler_s, 0.7 * sum_of(quick));
  EXPECT_GT(quick.computing_s, 6 * 0.7 * 2);
  EXPECT_LT(quick.computing_s, 6 * 1.3 * 2 + 2);
  EXPECT_LT(quick.transfer_s, 0.1 * sum_of(quick));
  EXPECT_LT(quick.agreement_s, 0.1 * sum_of(quick));
  EXPECT_GT(quick.agreement_s, 0);
  EXPECT_GT(quick.applying_s, 0);
  const auto slow = federation.gateway(2).status().waits;
  EXPECT_GT(slow.computing_s, 0.8 * sum_of(slow));
  // Nothing is left out, and nothing counted twice.
  EXPECT_NEAR(sum_of(quick), seconds_of(federation.now()), 3);
  EXPECT_NEAR(sum_of(slow), seconds_of(federation.now()), 3);
}

TEST(WaitsTest, ASlowLinkIsWaitedForAsTransfer) {
  auto options = options_of({2 * kSecond, 2 * kSecond});
  options.elements = 100'000;
  options.gateway.sync.chunk_elements = 4096;
  options.network.bytes_per_second = 5000;
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(federation.run_until([&] { return federation.finished(); }, 1000 * kSecond));
  for (const SiteId site : {1U, 2U}) {
    const auto waits = federation.gateway(site).status().waits;
    EXPECT_GT(waits.transfer_s, 0.6 * sum_of(waits)) << site;
    EXPECT_LT(waits.straggler_s, 0.2 * sum_of(waits)) << site;
    EXPECT_LT(waits.agreement_s, 0.2 * sum_of(waits)) << site;
  }
}

// A voter that cannot be reached is what agreement waits for, once all contributions are here.
TEST(WaitsTest, MissingVotesAreWaitedForAsAgreement) {
  auto options = options_of({2 * kSecond, 2 * kSecond, 2 * kSecond});
  options.voters = 2;
  options.gateway.sync.outer_steps = 1000;
  ScriptedFederation federation(std::move(options));
  auto& first = federation.gateway(1);
  // The other voter's ranks leave for good, then it is cut off: no majority without it.
  ASSERT_TRUE(federation.run_until(
      [&] { return first.state() && first.state()->step >= 4 && is_member(first, "s3"); },
      300 * kSecond));
  federation.end_ranks(2);
  ASSERT_TRUE(federation.run_until([&] { return !is_member(first, "s2"); }, 600 * kSecond));
  const auto before = first.status().waits.agreement_s;
  federation.cut_off(2, true);
  federation.run_for(60 * kSecond);
  EXPECT_GT(first.status().waits.agreement_s, before + 40);
}

// ---- States that differ

TEST(DivergenceTest, ASiteWithoutAVoteStopsNoVoter) {
  auto options = options_of({2 * kSecond, 2 * kSecond, 2 * kSecond});
  options.voters = 2;
  options.gateway.sync.outer_steps = 20;
  bool broken = false;
  options.adjust = [&broken](SiteId site, GatewayOptions& own) {
    if (site == 3)
      own.disturb = [&broken](std::uint64_t, std::span<float> agreed) {
        if (broken) agreed[0] += 1;
      };
  };
  ScriptedFederation federation(std::move(options));
  auto& first = federation.gateway(1);
  auto& third = federation.gateway(3);
  ASSERT_TRUE(federation.run_until(
      [&] { return first.state() && first.state()->step >= 3 && is_member(first, "s3"); },
      300 * kSecond));
  // The site without a vote computes the next step wrongly, and the other voter is cut off before
  // it can say what it has.
  broken = true;
  const auto step = first.state()->step + 1;
  ASSERT_TRUE(federation.run_until([&] { return first.chain().size() >= step; }, 60 * kSecond));
  federation.cut_off(2, true);
  ASSERT_TRUE(federation.run_until([&] { return third.state()->step >= step; }, 60 * kSecond));
  ASSERT_NE(third.root(), first.root());
  federation.run_for(180 * kSecond);
  EXPECT_FALSE(federation.process(1).failure()) << federation.process(1).failure()->text();
  EXPECT_EQ(federation.events(1, "state_disputed"), 0U);
  broken = false;
  federation.cut_off(2, false);
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 600 * kSecond));
  EXPECT_EQ(third.root(), first.root());
}

}  // namespace
}  // namespace isthmus::inter

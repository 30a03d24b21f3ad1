// Two sites between which nothing finds a way, or bulk does not, and a third that has what both
// contribute.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include "tests/inter/scripted_federation.h"

namespace isthmus::inter {
namespace {

// Two sites that can only dial out: what passes over a third costs little more time.
TEST(OutOfSightTest, StepsOverAThirdSiteTakeLittleLonger) {
  const auto steps_in_100_s = [](bool sees, std::uint64_t seed) {
    auto options = options_of({kSecond, kSecond, kSecond});
    options.network_seed = seed;
    options.gateway.sync.outer_steps = 1000;
    ScriptedFederation federation(std::move(options));
    if (!sees) federation.cut(2, 3, true);
    const auto step = [&](SiteId site) { return federation.step(site); };
    EXPECT_TRUE(federation.run_until(
        [&] { return step(1) >= 10 && step(2) >= 10 && step(3) >= 10; }, 300 * kSecond));
    const auto before = step(1);
    federation.run_for(100 * kSecond);
    return step(1) - before;
  };
  std::uint64_t over_a_third = 0, direct = 0;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    over_a_third += steps_in_100_s(false, seed);
    direct += steps_in_100_s(true, seed);
  }
  EXPECT_GT(4 * over_a_third, 3 * direct) << over_a_third << " and " << direct;
}

// Of sites without addresses no line is tested.
TEST(OutOfSightTest, ALinkThatCannotBeIsNotTested) {
  ScriptedFederation federation(options_of({kSecond, kSecond}));
  ASSERT_TRUE(
      federation.run_until([&] { return federation.gateway(1).state() != nullptr; }, 60 * kSecond));
  const auto tested = federation.gateway(1).test_link(1, "s2", {});
  ASSERT_FALSE(tested);
  EXPECT_NE(tested.error().message.find("neither s1 nor s2 has an address"), std::string::npos)
      << tested.error().message;
}

// Of three sites two reach each other's control port and not the bulk port, as behind a firewall.
// The third one has what both contribute.
TEST(BlockedBulkPortTest, StepsTakeLittleLonger) {
  const auto steps = [](bool blocked) {
    auto options = options_of({kSecond, kSecond, kSecond});
    options.gateway.sync.outer_steps = 100'000;
    ScriptedFederation federation(std::move(options));
    if (blocked) federation.cut_bulk(1, 2, true);
    federation.run_for(300 * kSecond);
    return federation.step(3);
  };
  const auto blocked = steps(true), open = steps(false);
  EXPECT_GT(6 * blocked, 5 * open) << blocked << " and " << open;
}

TEST(BlockedBulkPortTest, WhenItOpensNothingIsPassedOnAnyMore) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.gateway.sync.outer_steps = 100'000;
  ScriptedFederation federation(std::move(options));
  const auto make_steps = [&](std::uint64_t steps) {
    const auto wanted = federation.step(3) + steps;
    ASSERT_TRUE(federation.run_until([&] { return federation.step(3) >= wanted; }, 60 * kSecond));
  };
  const auto relayed = [&] { return federation.gateway(3).counters().relayed; };
  federation.cut_bulk(1, 2, true);
  federation.run_for(60 * kSecond);
  const auto before = relayed();
  make_steps(5);
  EXPECT_GE(relayed(), before + 9) << "each is asked for what the other contributes";
  federation.cut_bulk(1, 2, false);
  make_steps(3);
  const auto since = relayed();
  make_steps(10);
  EXPECT_EQ(relayed(), since);
}

// Nobody's bulk finds a way: each is asked in turn, and given its time, the site itself too.
TEST(BlockedBulkPortTest, OfAllOthersAsksNobodyAllTheTime) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.gateway.sync.outer_steps = 100'000;
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(federation.run_until([&] { return federation.step(1) >= 2; }, 60 * kSecond));
  for (const SiteId other : {2U, 3U}) federation.cut_bulk(1, other, true);
  const auto asked = [&] { return federation.gateway(1).counters().asked; };
  const auto before = asked();
  federation.run_for(100 * kSecond);
  EXPECT_GT(asked(), before + 4) << "it does go on";
  EXPECT_LT(asked(), before + 60) << "two, each five seconds, and at once where one has ended";
}

// What came, and does not fit on this site's own disk, is not asked of others.
TEST(BlockedBulkPortTest, AFullDiskIsNotTakenForOne) {
  auto options = options_of({kSecond, kSecond, kSecond, 60 * kSecond});
  options.elements = options.gateway.sync.chunk_elements = 20'000;
  options.gateway.sync.outer_steps = 100'000;
  ScriptedFederation federation(std::move(options));
  const auto reaches = [&](std::uint64_t step) {
    return federation.run_until([&] { return federation.step(3) >= step; }, 600 * kSecond);
  };
  const auto relayed = [&] {
    std::uint64_t sum = 0;
    for (const SiteId site : {1, 2, 4}) sum += federation.gateway(site).counters().relayed;
    return sum;
  };
  ASSERT_TRUE(reaches(3));
  const auto before = relayed();
  federation.disk(3).set_faults({.fits = 5000, .full_for = "-1"});
  federation.run_for(30 * kSecond);
  EXPECT_GT(federation.events(3, "disk_failed"), 0U);
  EXPECT_EQ(federation.step(3), 3U);
  EXPECT_EQ(relayed(), before);
  federation.disk(3).set_faults({});
  EXPECT_TRUE(reaches(4));
}

}  // namespace
}  // namespace isthmus::inter

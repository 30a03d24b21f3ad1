// The storm: what its seeds draw, and what happens to whoever is in it. Many seeds at once are run
// by `isthmus simulate --storm` (tests/sim/CMakeLists.txt).
#include "inter/sim/storm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "inter/sim/federation.h"

namespace isthmus::inter::sim {
namespace {

TEST(Storm, DrawsEveryKindOfFault) {
  std::map<FaultKind, int> kinds;
  std::set<std::uint32_t> sites;
  std::set<std::string> texts;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const auto scenario = storm_scenario(seed);
    sites.insert(scenario.sites);
    EXPECT_LE(scenario.voters, scenario.sites);
    EXPECT_LE(scenario.min_sites, scenario.sites);
    for (const auto& fault : faults_of(scenario, seed)) {
      ++kinds[fault.kind];
      texts.insert(text_of(fault));
      EXPECT_LT(fault.site, scenario.sites);
      EXPECT_LT(fault.other, scenario.sites);
    }
  }
  EXPECT_THAT(sites, testing::ElementsAre(2, 3, 4, 5, 6, 7));
  const auto last = static_cast<int>(FaultKind::lost_majority);
  for (int kind = 0; kind <= last; ++kind) {
    const auto drawn = kinds[static_cast<FaultKind>(kind)];
    // A vote file is lost with a crash.
    EXPECT_EQ(drawn > 0, static_cast<FaultKind>(kind) != FaultKind::lost_vote) << kind;
  }
  EXPECT_GT(texts.size(), 500U);
}

TEST(Storm, SomeFederationsHaveSitesThatTakeFewConnections) {
  int with = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed)
    if (storm_scenario(seed).few_connections > 0) ++with;
  EXPECT_GT(with, 100);
  EXPECT_LT(with, 200);
}

// In the worst of seeds a fault comes with every outer step.
TEST(Storm, FaultsComeDownToOneForEachStep) {
  double least = 1e9, most = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const auto scenario = storm_scenario(seed);
    const double steps = seconds_of(scenario.any_fault_every) / seconds_of(scenario.compute);
    least = std::min(least, steps);
    most = std::max(most, steps);
  }
  EXPECT_LT(least, 1.5);
  EXPECT_GT(most, 5);
}

TEST(Storm, OneSeedTwiceIsOneRun) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const auto a = run_federation(storm_scenario(seed), seed),
               b = run_federation(storm_scenario(seed), seed);
    EXPECT_EQ(a.log_hash, b.log_hash) << seed;
    EXPECT_EQ(a.events, b.events) << seed;
  }
}

TEST(Storm, WhatWouldComeAfterTheEndDidNotHappen) {
  std::size_t too_late = 0;
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    const auto run = run_federation(storm_scenario(seed), seed);
    std::vector<std::uint32_t> came;
    for (std::uint32_t i = 0; i < run.faults.size(); ++i)
      if (run.faults[i].when == kAtAThird ||
          seconds_of(run.faults[i].when) <= run.simulated_seconds)
        came.push_back(i);
    EXPECT_EQ(run.happened, came) << seed;
    too_late += run.faults.size() - came.size();
  }
  EXPECT_GT(too_late, 0U);
}

// Two steps of one site; nothing but the disk differs.
TEST(Disks, TakeTheirTimeFromTheScenarioAndFromFaults) {
  Scenario calm;
  calm.sites = 1;
  calm.outer_steps = 4;
  const auto usual = run_federation(calm, 1);
  auto slow = calm;
  slow.disk.sync = kSecond;
  const auto of_scenario = run_federation(slow, 1);
  auto faulty = calm;
  faulty.slow_disks = 60;  // a minute: nearly always, ten times as slow at least
  const auto of_faults = run_federation(faulty, 1);
  ASSERT_TRUE(usual.finished && of_scenario.finished && of_faults.finished);
  EXPECT_GT(of_scenario.simulated_seconds, usual.simulated_seconds + 4);
  EXPECT_GT(of_faults.counters.at("slow disks"), 5U);
  EXPECT_GT(of_faults.simulated_seconds, usual.simulated_seconds + 0.2);
}

// A branch that no seed takes is a branch that no seed tests.
TEST(Storm, EveryFaultHappens) {
  std::set<std::string> untaken = {"crashes",
                                   "processes killed",
                                   "power failures",
                                   "disks of voters wiped",
                                   "outages",
                                   "outages with a site lost",
                                   "sites left",
                                   "sites left for good",
                                   "full disks",
                                   "times without descriptors",
                                   "torn files",
                                   "slow disks",
                                   "partitions",
                                   "one-way partitions",
                                   "broken connections",
                                   "slow access links",
                                   "bursts of loss",
                                   "slow ranks",
                                   "ranks died",
                                   "ranks hung",
                                   "pauses",
                                   "jumps of calendars",
                                   "memory errors",
                                   "vote files lost",
                                   "voters changed",
                                   "recoveries",
                                   "killed saving",
                                   "killed again feedback_written"};
  for (std::uint64_t seed = 1; seed <= 300 && !untaken.empty(); ++seed) {
    const auto outcome = run_federation(storm_scenario(seed), seed);
    EXPECT_THAT(outcome.violations, testing::IsEmpty())
        << "replay: isthmus simulate --storm --seed " << seed;
    for (const auto& [name, n] : outcome.counters)
      if (n > 0) untaken.erase(name);
  }
  EXPECT_THAT(untaken, testing::IsEmpty());
}

}  // namespace
}  // namespace isthmus::inter::sim

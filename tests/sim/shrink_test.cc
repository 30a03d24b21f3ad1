// A failing run made shorter: of a run that is made up, and of one with a planted bug.
#include "inter/sim/shrink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace isthmus::inter::sim {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const std::string kViolation = "[3.5 s] s2 has another state 4";

TEST(Invariant, IsWhatAViolationSaysWithoutItsNumbers) {
  EXPECT_EQ(invariant_of(kViolation), "s# has another state #");
  EXPECT_EQ(invariant_of("[104.25 s] s1 has another state 17"), invariant_of(kViolation));
  EXPECT_EQ(invariant_of("[1 s] the run did not finish: 3 of 6 steps; s1:3"),
            "the run did not finish");
  EXPECT_EQ(invariant_of("the simulator was ended by signal 6 (Aborted)"),
            "the simulator was ended by signal # (Aborted)");
  EXPECT_NE(invariant_of("[1 s] s1 failed: x"), invariant_of(kViolation));
  EXPECT_EQ(invariant_of("[1 s] s1 failed: no room: a"),
            invariant_of("[2 s] s3 failed: no room: b"));
  EXPECT_NE(invariant_of("[1 s] s1 failed: no room"), invariant_of("[1 s] s1 failed: diverged"));
}

// Fails when all of these happen.
class MadeUpRun {
 public:
  explicit MadeUpRun(std::vector<std::uint32_t> needed) : needed_(std::move(needed)) {}
  std::optional<std::string> operator()(const PartOfRun& part) const {
    const auto happens = [&](auto place) {
      return std::ranges::binary_search(*part.faults, place);
    };
    if (part.outer_steps.value_or(8) < 3 || part.sites.value_or(5) < 4) return std::nullopt;
    if (!std::ranges::all_of(needed_, happens)) return std::nullopt;
    return "[9.1 s] s4 has another state 2";
  }

 private:
  std::vector<std::uint32_t> needed_;
};

TEST(Shrink, FindsWhatItTakes) {
  for (const auto& needed : std::vector<std::vector<std::uint32_t>>{
           {}, {0}, {63}, {3, 40}, {0, 1, 2, 3}, {5, 20, 21, 50, 63}}) {
    const auto shrunk = shrink(MadeUpRun(needed), kViolation, 64, 5, 2, 8);
    EXPECT_EQ(shrunk.part.faults, needed);
    EXPECT_EQ(shrunk.part.outer_steps, 3U);
    EXPECT_EQ(shrunk.part.sites, 4U);
    EXPECT_EQ(shrunk.violation, "[9.1 s] s4 has another state 2");
    EXPECT_LT(shrunk.runs, 100U);
  }
}

TEST(Shrink, LeavesAsManySitesAsItsFaultsNeed) {
  EXPECT_EQ(shrink(MadeUpRun({}), kViolation, 64, 5, 5, 8).part.sites, std::nullopt);
  Scenario s;
  s.sites = s.voters = 7;
  s.min_sites = 2;
  EXPECT_EQ(least_sites(s), 2U);
  s.roster_changes = true;
  EXPECT_EQ(least_sites(s), 3U);
  s.roster_drops = true;
  EXPECT_EQ(least_sites(s), 3U) << "two of three voters stay";
  s.min_sites = 4;
  EXPECT_EQ(least_sites(s), 5U);
  s.roster_changes = s.roster_drops = false;
  s.one_leaves_for_good = true;
  EXPECT_EQ(least_sites(s), 5U);
  s.one_leaves_for_good = false;
  s.majority_lost = true;
  s.min_sites = 1;
  EXPECT_EQ(least_sites(s), 3U) << "two of them are lost";
  s.narrow_site = true;
  EXPECT_EQ(least_sites(s), 7U);
}

TEST(Shrink, KeepsToTheInvariant) {
  const auto run = [](const PartOfRun& part) -> std::optional<std::string> {
    if (part.faults->size() == 10 && !part.sites && !part.outer_steps) return kViolation;
    return "[1 s] something else is wrong";
  };
  EXPECT_EQ(shrink(run, kViolation, 10, 5, 2, 8).part.faults->size(), 10U);
}

TEST(Shrink, EndsWithWhatItHasWhenThatIsEnough) {
  int asked = 0;
  const auto shrunk = shrink(MadeUpRun({7}), kViolation, 64, 5, 2, 8, [&] { return ++asked > 3; });
  EXPECT_LE(shrunk.runs, 3U);
  EXPECT_TRUE(MadeUpRun({7})(shrunk.part));
}

TEST(Shrink, OfAPlantedBugNoFaultCanBeLeftOut) {
  auto scenarios = standard_scenarios();
  auto scenario = *std::ranges::find(scenarios, "crashes", &Scenario::name);
  scenario.bug = PlantedBug::lying_disk;
  std::uint64_t runs_shrunk = 0;
  for (std::uint64_t seed = 1; seed <= 50 && runs_shrunk < 2; ++seed) {
    const auto whole = run_federation(scenario, seed);
    if (whole.violations.empty()) continue;
    const auto run = [&](const PartOfRun& part) -> std::optional<std::string> {
      const auto outcome = run_federation(scenario, seed, false, part);
      if (outcome.violations.empty()) return std::nullopt;
      return outcome.violations.front();
    };
    const auto& violation = whole.violations.front();
    const auto shrunk = shrink(run, violation, static_cast<std::uint32_t>(whole.faults.size()),
                               scenario.sites, 2, scenario.outer_steps);
    EXPECT_EQ(invariant_of(shrunk.violation), invariant_of(violation)) << seed;
    EXPECT_EQ(run(shrunk.part), shrunk.violation) << "the same part is the same run";
    for (const auto left_out : *shrunk.part.faults) {
      auto faults = *shrunk.part.faults;
      std::erase(faults, left_out);
      const PartOfRun fewer{faults, shrunk.part.sites, shrunk.part.outer_steps};
      EXPECT_NE(invariant_of(run(fewer).value_or("")), invariant_of(violation)) << seed;
    }
    ++runs_shrunk;
  }
  EXPECT_EQ(runs_shrunk, 2U);
}

TEST(FaultText, ReadsAsASentence) {
  Fault fault{.kind = FaultKind::crash, .site = 1, .count = 1, .point = "final"};
  EXPECT_EQ(text_of(fault), "s2 crashes at the point \"final\"");
  fault = {.kind = FaultKind::partition, .length = 2 * kSecond, .site = 1, .other = 2, .point = {}};
  EXPECT_EQ(text_of(fault), "the way between s2 and s3 is cut for 2.0 s");
  fault.one_way = true;
  EXPECT_EQ(text_of(fault), "the way from s2 to s3 is cut for 2.0 s");
  fault = {.kind = FaultKind::slow_access, .length = kForGood, .site = 1, .point = {}, .factor = 2};
  EXPECT_EQ(text_of(fault), "the rate of the access link of s2 is divided by 2 for good");
}

TEST(Parts, AllFaultsGivenBackAreTheSameRun) {
  for (const auto& scenario : standard_scenarios()) {
    if (scenario.sites > 7) continue;
    const auto whole = run_federation(scenario, 3);
    PartOfRun part;
    part.faults.emplace();
    for (std::uint32_t i = 0; i < whole.faults.size(); ++i) part.faults->push_back(i);
    EXPECT_EQ(run_federation(scenario, 3, false, part).log_hash, whole.log_hash) << scenario.name;
    EXPECT_EQ(faults_of(scenario, 3).size(), whole.faults.size());
  }
}

TEST(Parts, OnlyTheFaultsThatAreNamedHappen) {
  Scenario scenario;
  scenario.pauses = 4;
  scenario.broken_connections = 4;
  const auto faults = faults_of(scenario, 1);
  PartOfRun part;
  part.faults.emplace();
  std::uint64_t breaks = 0;
  for (std::uint32_t i = 0; i < faults.size(); ++i)
    if (faults[i].kind == FaultKind::broken_connection && faults[i].when < 10 * kSecond) {
      part.faults->push_back(i);
      ++breaks;
    }
  ASSERT_GT(breaks, 0U);
  const auto outcome = run_federation(scenario, 1, false, part);
  EXPECT_THAT(outcome.violations, IsEmpty());
  EXPECT_EQ(outcome.counters.count("pauses"), 0U);
  EXPECT_EQ(outcome.counters.at("broken connections"), breaks);
}

TEST(Parts, AreOfFewerSitesAndSteps) {
  Scenario scenario;
  scenario.sites = 5;
  PartOfRun part;
  part.sites = 2;
  part.outer_steps = 3;
  const auto outcome = run_federation(scenario, 1, true, part);
  EXPECT_TRUE(outcome.finished);
  EXPECT_EQ(outcome.steps, 3U);
  for (const auto& event : outcome.history.log)
    EXPECT_EQ(event.line.find("\"s3\""), event.line.npos) << event.line;
}

}  // namespace
}  // namespace isthmus::inter::sim

// Would the simulator find it? Each planted bug must break an invariant within 200 seeds.
#include <gtest/gtest.h>

#include "inter/sim/federation.h"

namespace isthmus::inter::sim {
namespace {

struct Planted {
  const char* name;
  PlantedBug bug;
  const char* scenario;
};

class PlantedBugTest : public testing::TestWithParam<Planted> {};

TEST_P(PlantedBugTest, IsFoundWithin200Seeds) {
  for (auto scenario : standard_scenarios()) {
    if (scenario.name != GetParam().scenario) continue;
    scenario.bug = GetParam().bug;
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
      const auto outcome = run_federation(scenario, seed);
      if (outcome.violations.empty()) continue;
      std::printf("  seed %llu: %s\n", static_cast<unsigned long long>(seed),
                  outcome.violations.front().c_str());
      return;
    }
    FAIL() << "no seed of 200 found it";
  }
  FAIL() << "no such scenario";
}

INSTANTIATE_TEST_SUITE_P(
    All, PlantedBugTest,
    testing::Values(Planted{"lying_disk", PlantedBug::lying_disk, "crashes"},
                    Planted{"acknowledge_early", PlantedBug::acknowledge_early, "disks"},
                    Planted{"skip_gap", PlantedBug::skip_gap, "storm"},
                    Planted{"announce_before_saved", PlantedBug::announce_before_saved, "crashes"},
                    Planted{"two_contributions", PlantedBug::two_contributions, "crashes"},
                    Planted{"drop_feedback", PlantedBug::drop_feedback, "partitions"}),
    [](const auto& chosen) { return std::string(chosen.param.name); });

}  // namespace
}  // namespace isthmus::inter::sim

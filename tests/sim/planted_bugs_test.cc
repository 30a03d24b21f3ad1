// Would the simulator find it? Each planted bug must break an invariant within 200 seeds, and be
// seen by the check that is there for it, not only by a run that goes wrong somehow.
#include <gtest/gtest.h>

#include "inter/sim/federation.h"

namespace isthmus::inter::sim {
namespace {

struct Planted {
  const char* name;
  PlantedBug bug;
  const char* scenario;
  const char* seen_as;
  compress::CodecId codec = compress::CodecId::int8;
};

class PlantedBugTest : public testing::TestWithParam<Planted> {};

TEST_P(PlantedBugTest, IsFoundWithin200Seeds) {
  for (auto scenario : standard_scenarios()) {
    if (scenario.name != GetParam().scenario) continue;
    scenario.bug = GetParam().bug;
    scenario.codec = GetParam().codec;
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
      const auto outcome = run_federation(scenario, seed);
      for (const auto& violation : outcome.violations) {
        if (violation.find(GetParam().seen_as) == std::string::npos) continue;
        std::printf("  seed %llu: %s\n", static_cast<unsigned long long>(seed), violation.c_str());
        return;
      }
    }
    FAIL() << "in no run of 200 \"" << GetParam().seen_as << "\"";
  }
  FAIL() << "no such scenario";
}

INSTANTIATE_TEST_SUITE_P(
    All, PlantedBugTest,
    testing::Values(
        Planted{"lying_disk", PlantedBug::lying_disk, "crashes", "had announced step"},
        Planted{"acknowledge_early", PlantedBug::acknowledge_early, "disks", "acknowledged chunk"},
        Planted{"skip_gap", PlantedBug::skip_gap, "storm", "acknowledged chunk"},
        Planted{"announce_before_saved", PlantedBug::announce_before_saved, "crashes",
                "had announced step"},
        // Feedback would show it sooner, where there is some.
        Planted{"two_contributions", PlantedBug::two_contributions, "crashes",
                "two contributions of", compress::CodecId::none},
        Planted{"drop_feedback", PlantedBug::drop_feedback, "partitions", "the feedback of"}),
    [](const auto& chosen) { return std::string(chosen.param.name); });

}  // namespace
}  // namespace isthmus::inter::sim

#include "launcher/scenario_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isthmus::launcher {
namespace {

using ::testing::HasSubstr;

TEST(ScenarioFile, ChangesWhatItNames) {
  const auto scenario = parse_scenario("s.toml", R"(from = "pair"
sites = 7
loss = 0.25
compute = "1.5 s"
speed = "8 Mbit/s"
codec = "int8"
outer = "nesterov"
bug = "lying_disk"
blind_pair = true
)");
  ASSERT_TRUE(scenario) << scenario.error().text();
  EXPECT_EQ(scenario->name, "pair");
  EXPECT_EQ(scenario->sites, 7U);
  EXPECT_EQ(scenario->min_sites, 2U);  // of "pair"
  EXPECT_EQ(scenario->network.loss, 0.25);
  EXPECT_EQ(scenario->network.bytes_per_second, 1e6);
  EXPECT_EQ(scenario->compute, 1500 * kMillisecond);
  EXPECT_EQ(scenario->codec, compress::CodecId::int8);
  EXPECT_EQ(scenario->outer.kind, inter::OuterRuleKind::nesterov);
  EXPECT_EQ(scenario->bug, inter::PlantedBug::lying_disk);
  EXPECT_TRUE(scenario->blind_pair);
}

TEST(ScenarioFile, SaysWhatIsWrong) {
  const auto wrong = parse_scenario("s.toml", R"(from = "pairs"
sites = 0
loss = 1.5
crash = 1
compute = 3
bug = "lying_disc"
)");
  ASSERT_FALSE(wrong);
  const auto text = wrong.error().text();
  for (const char* part :
       {"s.toml:1:8: error: there is no scenario \"pairs\"; did you mean \"pair\"?", "s.toml:2:9",
        "loss must be a number from 0 to 0.9", "no \"crash\"; did you mean \"crashes\"?",
        "compute must be text (a duration)", "did you mean \"lying_disk\"?", "6 faults"})
    EXPECT_THAT(text, HasSubstr(part));
}

TEST(ScenarioFile, StandardScenariosHaveNames) {
  for (const auto& standard : inter::sim::standard_scenarios())
    EXPECT_EQ(read_scenario(standard.name).value().name, standard.name);
  const auto none = read_scenario("storn");
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().text(), HasSubstr("did you mean \"storm\"?"));
}

}  // namespace
}  // namespace isthmus::launcher

#include "launcher/scenario_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

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
outer_rate = 0.5
outer_momentum = 0.25
silent_deaths = 1
bug = "lying_disk"
blind_pair = true
queue = "64 KiB"
packet_loss = 0.01
disk_sync = "0 s"
disk_speed = "5 MB/s"
any_fault_every = "4 s"
pauses = 2
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
  EXPECT_EQ(scenario->outer.rate, 0.5F);
  EXPECT_EQ(scenario->outer.momentum, 0.25F);
  EXPECT_EQ(scenario->network.silent_deaths, 1);
  EXPECT_EQ(scenario->bug, inter::PlantedBug::lying_disk);
  EXPECT_TRUE(scenario->blind_pair);
  EXPECT_EQ(scenario->network.queue_bytes, 64U << 10);
  EXPECT_EQ(scenario->network.packet_loss, 0.01);
  EXPECT_EQ(scenario->disk.sync, 0);
  EXPECT_EQ(scenario->disk.bytes_per_second, 5e6);
  EXPECT_EQ(scenario->any_fault_every, 4 * kSecond);
  EXPECT_EQ(scenario->pauses, 2);
}

TEST(ScenarioFile, SaysWhatIsWrong) {
  const auto wrong = parse_scenario("s.toml", R"(from = "pairs"
sites = 0
loss = 1.5
crash = 1
compute = 3
bug = "lying_disc"
queue = "0 B"
disk_speed = "unlimited"
)");
  ASSERT_FALSE(wrong);
  const auto text = wrong.error().text();
  for (const char* part :
       {"s.toml:1:8: error: there is no scenario \"pairs\"; did you mean \"pair\"?", "s.toml:2:9",
        "loss must be a number from 0 to 0.9", "no \"crash\"; did you mean \"crashes\"?",
        "compute must be text (a duration)", "did you mean \"lying_disk\"?",
        "queue must be above 0", "what is simulated has some speed", "8 faults"})
    EXPECT_THAT(text, HasSubstr(part));
}

// configs/scenarios/storm.toml is the standard storm written out, with all keys.
TEST(ScenarioFile, TheExampleIsAStorm) {
  constexpr auto kPath = ISTHMUS_SOURCE_DIR "/configs/scenarios/storm.toml";
  std::ifstream in(kPath);
  const std::string source{std::istreambuf_iterator<char>(in), {}};
  std::istringstream keys(scenario_keys_text());
  for (std::string line, key; std::getline(keys, line);) {
    if (line.starts_with("   ")) continue;  // the rest of a meaning
    std::istringstream(line) >> key;
    EXPECT_THAT(source, HasSubstr("\n" + key + " = "));
  }
  // Also where nothing is taken over from the standard one.
  auto alone = source;
  const std::string from = "from = \"storm\"";
  alone.erase(alone.find("\n" + from) + 1, from.size());
  const auto read = read_scenario(kPath);
  auto rebuilt = parse_scenario("alone.toml", alone);
  ASSERT_TRUE(read) << read.error().text();
  ASSERT_TRUE(rebuilt) << rebuilt.error().text();
  rebuilt->name = "storm";  // part of what the seed is expanded with
  const auto storm = inter::sim::run_federation(read_scenario("storm").value(), 7);
  EXPECT_EQ(inter::sim::run_federation(*read, 7).log_hash, storm.log_hash);
  EXPECT_EQ(inter::sim::run_federation(*rebuilt, 7).log_hash, storm.log_hash);
}

TEST(ScenarioFile, StandardScenariosHaveNames) {
  for (const auto& standard : inter::sim::standard_scenarios())
    EXPECT_EQ(read_scenario(standard.name).value().name, standard.name);
  const auto none = read_scenario("storn");
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().text(), HasSubstr("did you mean \"storm\"?"));
  const auto no_file = read_scenario("none.toml");
  ASSERT_FALSE(no_file);
  EXPECT_THAT(no_file.error().text(), HasSubstr("cannot open none.toml: No such file"));
}

TEST(ScenarioFile, NothingNeedsMoreSitesThanThereAre) {
  const auto wrong = parse_scenario("s.toml", "sites = 2\nvoters = 5\nmin_sites = 3\n");
  ASSERT_FALSE(wrong);
  for (const char* part : {"s.toml:2:10: error: voters = 5, but there are 2 sites",
                           "s.toml:3:13: error: min_sites = 3, but there are 2 sites"})
    EXPECT_THAT(wrong.error().text(), HasSubstr(part));
  const auto fewer = parse_scenario("s.toml", "from = \"pair\"\nsites = 1\n");
  ASSERT_TRUE(fewer) << fewer.error().text();
  EXPECT_EQ(fewer->min_sites, 1U);
  EXPECT_EQ(fewer->voters, 1U);
}

}  // namespace
}  // namespace isthmus::launcher

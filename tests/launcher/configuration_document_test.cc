// docs/configuration.md and configs/ say what the table of keys says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "launcher/site_check.h"
#include "launcher/site_document.h"
#include "launcher/site_file.h"
#include "launcher/sites_together.h"

namespace isthmus::launcher {
namespace {

std::string contents(const std::string& path) {
  std::ifstream in(std::string(ISTHMUS_SOURCE_DIR) + "/" + path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(ConfigurationDocument, IsWhatTheTableGives) {
  EXPECT_TRUE(contents("docs/configuration.md") == configuration_document())
      << "run: isthmus check --document > docs/configuration.md";
}

// The keys and values of a file of ours, in which each stands on a line of its own.
SiteValues values_of(const std::string& text) {
  SiteValues values;
  std::string section;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.front() == '#') continue;
    if (line.front() == '[') {
      section = line.substr(1, line.find(']') - 1);
      continue;
    }
    const auto equals = line.find(" = ");
    values[section + "." + line.substr(0, equals)] = line.substr(equals + 3);
  }
  return values;
}

class Configs : public ::testing::TestWithParam<const char*> {};

TEST_P(Configs, HaveNoFault) {
  auto text = parse_site_text(GetParam(), contents(GetParam()));
  check_values(text, {.cpus = {0, 1}, .unix_time = 0});
  EXPECT_EQ(text.fault_text(), "");
}

// Every key is explained, in the words of the table. ISTHMUS_UPDATE=1 writes the explanations anew.
TEST_P(Configs, ExplainEachKey) {
  const auto text = contents(GetParam());
  const auto explained = explained_site_file(values_of(text));
  if (std::getenv("ISTHMUS_UPDATE") != nullptr)
    std::ofstream(std::string(ISTHMUS_SOURCE_DIR) + "/" + GetParam()) << explained;
  EXPECT_EQ(text, explained) << "run this test again with ISTHMUS_UPDATE=1";
}

INSTANTIATE_TEST_SUITE_P(All, Configs,
                         ::testing::Values("configs/quickstart/alpha.toml",
                                           "configs/quickstart/beta.toml"),
                         [](const auto& config) {
                           return std::string(config.index == 0 ? "alpha" : "beta");
                         });

TEST(QuickstartConfigs, TheTwoSitesFitTogether) {
  std::vector<CheckedSite> sites;
  for (const std::string path : {"configs/quickstart/alpha.toml", "configs/quickstart/beta.toml"})
    sites.push_back({parse_site_text(path, contents(path)), std::nullopt});
  check_together(sites);
  for (const auto& site : sites) EXPECT_EQ(site.text.fault_text(), "");
}

}  // namespace
}  // namespace isthmus::launcher

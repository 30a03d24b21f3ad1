#include "launcher/sites_together.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/launcher/sample_site.h"

namespace isthmus::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CheckTogether, SharedKeysMustBeEqual) {
  std::vector<CheckedSite> sites;
  sites.push_back({checked(std::string(kGood))});
  auto other = parse_site_text(
      "beta.toml",
      replaced("name = \"alpha\"\nrun_dir = \"run\"", "name = \"beta\"\nrun_dir = \"b\""),
      std::vector<std::string>{"sync.inner_steps=20"});
  sites.push_back({std::move(other)});
  check_together(sites);
  EXPECT_TRUE(sites[0].fault_free());
  EXPECT_EQ(only_fault(sites[1].text),
            "sync.inner_steps = 20 here and 10 in site.toml; it must be equal at all sites");
}

TEST(CheckTogether, PortsMustDifferWhateverTheyAreFor) {
  const auto faults = [](const std::string& gateway, const std::string& other_gateway) {
    std::vector<CheckedSite> sites;
    sites.push_back(
        {parse_site_text("alpha.toml", replaced("[gateway]", "[gateway]\n" + gateway))});
    auto other =
        replaced("name = \"alpha\"\nrun_dir = \"run\"", "name = \"beta\"\nrun_dir = \"b\"");
    other.replace(other.find("[gateway]"), 9, "[gateway]\n" + other_gateway);
    sites.push_back({parse_site_text("beta.toml", other)});
    check_together(sites);
    return sites[1].text.fault_text();
  };
  EXPECT_EQ(faults("listen = \"127.0.0.1:7700\"", "listen = \"127.0.0.1:7702\""), "");
  EXPECT_EQ(faults("listen = \"10.0.0.5:7700\"", "metrics = \"127.0.0.1:7701\""), "");
  EXPECT_THAT(faults("listen = \"127.0.0.1:7700\"", "listen = \"127.0.0.1:7699\""),
              HasSubstr("gateway.listen needs port 7700 (it uses its own and the next), which "
                        "gateway.listen takes in alpha.toml"));
  EXPECT_THAT(faults("listen = \"*:7700\"", "metrics = \"127.0.0.1:7701\""),
              HasSubstr("gateway.metrics needs port 7701, which gateway.listen takes in alpha"));
}

TEST(CheckTogether, NamesAndFoldersMustDiffer) {
  std::vector<CheckedSite> sites;
  sites.push_back({checked(std::string(kGood))});
  sites.push_back(
      {parse_site_text("beta.toml", replaced("run_dir = \"run\"", "run_dir = \"x/../run\""))});
  check_together(sites);
  EXPECT_TRUE(sites[0].fault_free());
  EXPECT_THAT(sites[1].text.fault_text(),
              AllOf(HasSubstr("beta.toml:2:8: error: site.name is the same as in site.toml"),
                    HasSubstr("beta.toml:3:11: error: site.run_dir is the same folder as in")));
}

}  // namespace
}  // namespace isthmus::launcher

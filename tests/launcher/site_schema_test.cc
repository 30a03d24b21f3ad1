#include "launcher/site_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "launcher/site_document.h"
#include "tests/launcher/sample_site.h"

namespace isthmus::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SiteSchema, TheStartingFileIsReadable) {
  const auto text = checked(starting_site_file({}));
  EXPECT_EQ(text.fault_text(), "");
  EXPECT_EQ(text.file.gateway.rate_limit, 0);
  EXPECT_EQ(text.file.sync.min_sites, 2);
}

TEST(SiteSchema, EveryDefaultIsAllowed) {
  for (const auto& key : site_keys()) {
    EXPECT_FALSE(key.meaning.empty()) << key.full_name();
    EXPECT_FALSE(key.allowed().empty()) << key.full_name();
    if (key.default_text().empty()) continue;
    const auto source = "[" + std::string(key.section) + "]\n" + std::string(key.name) + " = " +
                        key.default_text() + "\n";
    const auto text = parse_site_text("default.toml", source);
    for (const auto& fault : text.faults.sorted())
      EXPECT_THAT(fault.message, HasSubstr("needs")) << source;
  }
}

TEST(Cpus, Lists) {
  EXPECT_THAT(*parse_ranges("0"), ElementsAre(0));
  EXPECT_THAT(*parse_ranges("0-2,7, 9-10"), ElementsAre(0, 1, 2, 7, 9, 10));
  for (const char* wrong : {"", "-1", "1-", "2-1", "1,1", "1,0", "a", "1,", "0-99999", "1 2"})
    EXPECT_EQ(parse_ranges(wrong), std::nullopt) << wrong;
}

TEST(Address, HostAndPort) {
  EXPECT_EQ(parse_address("alpha.example:7700")->host, "alpha.example");
  EXPECT_EQ(parse_address("[::1]:7700")->host, "::1");
  EXPECT_EQ(parse_address("*:7700")->port, 7700);
  for (const char* wrong :
       {"", ":", "a", "a:", ":1", "a:0", "a:65536", "a:1x", "::1:7700", "a b:1"})
    EXPECT_EQ(parse_address(wrong), std::nullopt) << wrong;
}

}  // namespace
}  // namespace isthmus::launcher

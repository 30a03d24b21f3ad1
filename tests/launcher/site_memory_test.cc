#include "launcher/site_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/launcher/sample_site.h"

namespace isthmus::launcher {
namespace {

using ::testing::HasSubstr;

// Its sums do not fit 64 bits.
TEST(SiteMemory, NothingIsTooLargeToBeRefused) {
  auto file = checked(std::string(kGood)).file;
  file.model.config.layers = 1024;
  file.model.config.hidden = 1 << 16;
  file.model.config.ffn_width = 1 << 20;
  file.model.config.sequence_max = file.train.sequence = 1 << 20;
  file.train.micro_batch = 65536;
  EXPECT_GT(memory_of(file, 1).rank(), 1e20);
}

// As it came, as it is checked, and of two older steps.
TEST(SiteMemory, EachSiteAddsFourOfItsCodedContributions) {
  auto file = checked(std::string(kGood)).file;
  file.site.roster = "roster.toml";
  const auto parameters = static_cast<double>(runtime::parameter_count(file.model.config));
  for (const auto codec : {compress::CodecId::none, compress::CodecId::int8}) {
    file.sync.codec = codec;
    const auto more = memory_of(file, 9).gateway_state - memory_of(file, 8).gateway_state;
    EXPECT_DOUBLE_EQ(more, 4 * 4 * codec_share(codec) * parameters);
  }
}

// Two windows for each other site, of which a small contribution fills neither.
TEST(SiteMemory, TheWindowsOfTheLinksCount) {
  auto file = checked(std::string(kGood)).file;
  file.site.roster = "roster.toml";
  file.sync.codec = compress::CodecId::int8;
  const auto windows = [&](std::size_t sites) { return memory_of(file, sites).gateway_windows; };
  const auto contribution = 4 * codec_share(file.sync.codec) *
                            static_cast<double>(runtime::parameter_count(file.model.config));
  ASSERT_LT(contribution, 64.0 * (1 << 20));
  EXPECT_DOUBLE_EQ(windows(3), 2 * 2 * contribution);
  file.model.config.layers = 64;
  file.model.config.hidden = 4096;
  file.model.config.ffn_width = 16384;
  EXPECT_DOUBLE_EQ(windows(3), 2 * 2 * 256.0 * (1 << 20));
  file.gateway.receive_window = std::int64_t{1} << 30;
  EXPECT_DOUBLE_EQ(windows(3), 2 * 2 * 1024.0 * (1 << 20));
  EXPECT_DOUBLE_EQ(windows(2), 2 * 1024.0 * (1 << 20));
  const auto memory = memory_of(file, 2);
  EXPECT_DOUBLE_EQ(memory.gateway(), memory.gateway_state + memory.gateway_windows +
                                         memory.gateway_records + memory.gateway_shared);
}

// 256 sites and 10,000 outer steps are 760 MB of records.
TEST(SiteMemory, TheRecordsOfAllStepsAreCounted) {
  auto file = checked(std::string(kGood)).file;
  file.site.roster = "roster.toml";
  file.sync.outer_steps = 10'000;
  const auto before = memory_of(file, 256);
  file.sync.outer_steps = 20'000;
  const auto more = memory_of(file, 256).gateway() - before.gateway();
  EXPECT_GT(more, 10'000 * 256.0 * 250);
  EXPECT_LT(more, 10'000 * 256.0 * 400);
}

}  // namespace
}  // namespace isthmus::launcher

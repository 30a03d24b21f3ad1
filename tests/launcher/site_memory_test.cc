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

}  // namespace
}  // namespace isthmus::launcher

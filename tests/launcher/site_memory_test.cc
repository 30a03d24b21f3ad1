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
  EXPECT_GT(memory_of(file, 1).rank, 1e20);
}

}  // namespace
}  // namespace isthmus::launcher

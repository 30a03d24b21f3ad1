#include "inter/zstd_choice.h"

#include <gtest/gtest.h>

namespace isthmus::inter {
namespace {

constexpr std::uint64_t kLarge = 256 << 20;

TEST(ZstdChoice, PaysOnALineThatIsSlowerThanPacking) {
  const auto pays = [](double bytes_per_second, double saves) {
    return zstd_pays({.bytes = kLarge,
                      .slowest = BulkSender::Flow{bytes_per_second, 0},
                      .saves = saves,
                      .parallel = 2});
  };
  EXPECT_TRUE(pays(12.5e6, 0.06));    // 100 Mbit/s, int8
  EXPECT_FALSE(pays(125e6, 0.06));    // 1 Gbit/s
  EXPECT_TRUE(pays(125e6, 0.3));      // bf16
  EXPECT_FALSE(pays(12.5e6, 0.005));  // nothing to be saved
  EXPECT_FALSE(pays(1e3, -0.01));
}

TEST(ZstdChoice, NotWhereCodingIsWhatIsWaitedFor) {
  EXPECT_FALSE(zstd_pays(
      {.bytes = kLarge, .slowest = BulkSender::Flow{1e6, 0.5}, .saves = 0.06, .parallel = 2}));
}

TEST(ZstdChoice, UnknownItIsTriedWhereItCostsNothing) {
  EXPECT_TRUE(zstd_pays({.bytes = 1 << 20, .slowest = {}, .saves = {}, .parallel = 1}));
  EXPECT_FALSE(zstd_pays({.bytes = kLarge, .slowest = {}, .saves = {}, .parallel = 1}));
  EXPECT_FALSE(zstd_pays(
      {.bytes = kLarge, .slowest = BulkSender::Flow{1e6, 0}, .saves = {}, .parallel = 1}));
}

}  // namespace
}  // namespace isthmus::inter

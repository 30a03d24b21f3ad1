#include "launcher/nearest_name.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace isthmus::launcher {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"layers",      "heads", "kv_heads",
                                                    "micro_batch", "ffn",   "rate_limit"};

TEST(NearestName, FindsSlips) {
  EXPECT_EQ(nearest_name("layer", kNames), "layers");
  EXPECT_EQ(nearest_name("lyaers", kNames), "layers");  // two letters swapped are one slip
  EXPECT_EQ(nearest_name("haeds", kNames), "heads");
  EXPECT_EQ(nearest_name("Heads", kNames), "heads");
  EXPECT_EQ(nearest_name("kv-heads", kNames), "kv_heads");
  EXPECT_EQ(nearest_name("kvheads", kNames), "kv_heads");
  EXPECT_EQ(nearest_name("microbatch", kNames), "micro_batch");
  EXPECT_EQ(nearest_name("rate_limt", kNames), "rate_limit");
  EXPECT_EQ(nearest_name("fn", kNames), "ffn");
}

TEST(NearestName, DoesNotGuess) {
  EXPECT_EQ(nearest_name("colour", kNames), std::nullopt);
  EXPECT_EQ(nearest_name("", kNames), std::nullopt);
  EXPECT_EQ(nearest_name("abc", kNames), std::nullopt);
  EXPECT_EQ(nearest_name(std::string(100000, 'l'), kNames), std::nullopt);
  EXPECT_EQ(nearest_name("layers", {}), std::nullopt);
}

}  // namespace
}  // namespace isthmus::launcher

#include "base/listed.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace isthmus {
namespace {

using Names = std::vector<std::string>;

TEST(Listed, JoinsTheLastWithAWord) {
  EXPECT_EQ(listed(Names{}), "");
  EXPECT_EQ(listed(Names{"alpha"}), "alpha");
  EXPECT_EQ(listed(Names{"alpha", "beta"}), "alpha and beta");
  EXPECT_EQ(listed(Names{"alpha", "beta", "gamma"}, "or"), "alpha, beta or gamma");
}

TEST(Listed, SaysHowManyOfThemDo) {
  const Names three{"alpha", "beta", "gamma"};
  EXPECT_EQ(some_of(three, 1), "alpha, beta or gamma");
  EXPECT_EQ(some_of(three, 2), "2 of alpha, beta and gamma");
  EXPECT_EQ(some_of(three, 3), "alpha, beta and gamma");
  EXPECT_EQ(some_of(Names{"alpha"}, 1), "alpha");
}

}  // namespace
}  // namespace isthmus

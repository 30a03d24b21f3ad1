#include "base/assert.h"

#include <gtest/gtest.h>

namespace isthmus {
namespace {

TEST(Assert, HoldsInEveryBuildAndNamesTheCondition) {
  const int sites = 1;
  EXPECT_DEATH(ISTHMUS_ASSERT(sites == 2), "bug: .*assert_test.cc:[0-9]+: sites == 2");
}

TEST(Assert, AcceptsConditionsWithCommasAndRunsThemOnce) {
  int calls = 0;
  const auto both = [&](bool a, bool b) {
    ++calls;
    return a && b;
  };
  ISTHMUS_ASSERT(both(true, true));
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace isthmus

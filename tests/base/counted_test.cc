#include "base/counted.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace isthmus {
namespace {

TEST(Counted, OneIsSingular) {
  EXPECT_EQ(counted(0, "site"), "0 sites");
  EXPECT_EQ(counted(1, "inner step"), "1 inner step");
  EXPECT_EQ(counted(std::uint64_t{2}, "CPU"), "2 CPUs");
}

}  // namespace
}  // namespace isthmus

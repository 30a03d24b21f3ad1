#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "runtime/inner_optimizer.h"

namespace isthmus::runtime {
namespace {

TEST(RateSchedule, WarmsUpThenFollowsTheCosine) {
  const RateSchedule schedule{
      .peak = 2e-3, .warmup_steps = 20, .steps = 240, .final_fraction = 0.1};
  for (const std::int64_t t : {0, 1, 19, 20, 100, 239}) {
    const double x = static_cast<double>(t);
    const double expected =
        2e-3 * std::min(1.0, (x + 1) / 20) * (0.55 + 0.45 * std::cos(std::numbers::pi * x / 240));
    EXPECT_NEAR(schedule.rate(t), expected, 1e-15) << t;
  }
}

TEST(RateSchedule, KeepsTheFinalRate) {
  const RateSchedule schedule{.peak = 1, .warmup_steps = 0, .steps = 10, .final_fraction = 0.25};
  EXPECT_DOUBLE_EQ(schedule.rate(0), 1);
  EXPECT_DOUBLE_EQ(schedule.rate(10), 0.25);
  EXPECT_DOUBLE_EQ(schedule.rate(1000), 0.25);
}

}  // namespace
}  // namespace isthmus::runtime

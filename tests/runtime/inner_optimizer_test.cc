#include "runtime/inner_optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

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

TEST(RateSchedule, EachKeepsTheFinalRate) {
  for (const auto shape : {RateShape::cosine, RateShape::linear, RateShape::wsd}) {
    const RateSchedule schedule{
        .shape = shape, .peak = 1, .warmup_steps = 0, .steps = 10, .final_fraction = 0.25};
    EXPECT_DOUBLE_EQ(schedule.rate(0), 1);
    EXPECT_DOUBLE_EQ(schedule.rate(10), 0.25);
    EXPECT_DOUBLE_EQ(schedule.rate(1000), 0.25);
  }
}

TEST(RateSchedule, ConstantStaysAtThePeak) {
  const RateSchedule schedule{
      .shape = RateShape::constant, .peak = 3, .warmup_steps = 4, .steps = 10};
  EXPECT_DOUBLE_EQ(schedule.rate(0), 0.75);
  for (const std::int64_t t : {3, 9, 10, 1000}) EXPECT_DOUBLE_EQ(schedule.rate(t), 3);
}

TEST(RateSchedule, LinearIsAStraightLine) {
  const RateSchedule schedule{
      .shape = RateShape::linear, .peak = 1, .warmup_steps = 0, .steps = 8, .final_fraction = 0.5};
  for (std::int64_t t = 0; t <= 8; ++t)
    EXPECT_DOUBLE_EQ(schedule.rate(t), 1 - static_cast<double>(t) / 16) << t;
}

TEST(RateSchedule, StaysAndThenDecays) {
  RateSchedule schedule{.shape = RateShape::wsd,
                        .peak = 2,
                        .warmup_steps = 2,
                        .steps = 100,
                        .decay_steps = 10,
                        .final_fraction = 0};
  EXPECT_DOUBLE_EQ(schedule.rate(0), 1);
  EXPECT_DOUBLE_EQ(schedule.rate(1), 2);
  EXPECT_DOUBLE_EQ(schedule.rate(90), 2);
  EXPECT_DOUBLE_EQ(schedule.rate(95), 1);
  EXPECT_DOUBLE_EQ(schedule.rate(99), 0.2);
  schedule.decay_steps = 0;  // a fifth
  EXPECT_DOUBLE_EQ(schedule.rate(80), 2);
  EXPECT_DOUBLE_EQ(schedule.rate(90), 1);
  schedule.steps = 4;  // too few for a fifth of a step
  EXPECT_DOUBLE_EQ(schedule.rate(3), 2);
}

TEST(RateSchedule, ALongerRunStaysTheSameUntilItDecays) {
  const RateSchedule shorter{.shape = RateShape::wsd, .steps = 100, .decay_steps = 30};
  auto longer = shorter;
  longer.steps = 1000;
  for (std::int64_t t = 0; t <= 70; ++t) EXPECT_EQ(shorter.rate(t), longer.rate(t)) << t;
  EXPECT_LT(shorter.rate(71), longer.rate(71));
}

}  // namespace
}  // namespace isthmus::runtime

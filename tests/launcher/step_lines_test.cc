#include "launcher/step_lines.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace isthmus::launcher {
namespace {

class StepLinesTest : public testing::Test {
 protected:
  StepLinesTest() {
    file_.site.name = "alpha";
    file_.site.roster = "roster.toml";
    file_.sync.inner_steps = 10;
    file_.sync.outer_steps = 40;
  }
  std::string inner_step(int step, double loss) {
    return lines_.line_of(*parse_event(
        fmt::format(R"({{"kind":"inner_step","inner_step":{},"loss":{},"tokens_per_second":1200}})",
                    step, loss)));
  }
  std::string merge(int step) {
    return lines_.line_of(*parse_event(
        fmt::format(R"({{"kind":"merge","outer_step":{},"seconds_waited":2}})", step)));
  }
  void applied(int step, int behind) {
    lines_.note(*parse_event(
        fmt::format(R"({{"event":"step_applied","outer_step":{},"behind":{}}})", step, behind)));
  }

  SiteFile file_;
  StepLines lines_{file_};
};

TEST_F(StepLinesTest, AStepSaysWhatWasTrainedInIt) {
  EXPECT_EQ(inner_step(1, 2.9), "");
  EXPECT_EQ(inner_step(2, 2.8), "");
  EXPECT_EQ(merge(1), "alpha outer step 1/40  loss 2.800  1.20 k tokens/s  waited 2.00 s");
}

TEST_F(StepLinesTest, WhatWasTrainedBeforeAnEarlierStepIsNoNews) {
  EXPECT_EQ(merge(7), "alpha outer step 7/40  waited 2.00 s");
  inner_step(1, 2.9);
  merge(8);
  EXPECT_EQ(merge(9), "alpha outer step 9/40  waited 2.00 s");
}

TEST_F(StepLinesTest, AReplayedStepSaysHowFarTheOthersAre) {
  inner_step(1, 2.9);
  applied(4, 26);
  EXPECT_EQ(merge(4), "alpha outer step 4/40  catching up: the others have done 30");
  inner_step(2, 2.9);
  applied(5, 26);
  EXPECT_EQ(merge(5), "alpha outer step 5/40  catching up: the others have done 31");
  applied(30, 1);
  applied(31, 0);
  inner_step(3, 1.9);
  EXPECT_EQ(merge(31), "alpha outer step 31/40  loss 1.900  1.20 k tokens/s  waited 2.00 s");
  applied(32, 1);  // it has just been decided
  inner_step(4, 1.8);
  EXPECT_EQ(merge(32), "alpha outer step 32/40  loss 1.800  1.20 k tokens/s  waited 2.00 s");
}

TEST_F(StepLinesTest, ASiteAloneCountsItsInnerSteps) {
  file_.site.roster.clear();
  EXPECT_EQ(inner_step(19, 2.5), "");
  EXPECT_EQ(inner_step(20, 2.4), "alpha outer step 2/40  loss 2.400  1.20 k tokens/s");
}

}  // namespace
}  // namespace isthmus::launcher

#include "inter/burst_pace.h"

#include <gtest/gtest.h>

#include "inter/log_pace.h"

namespace isthmus::inter {
namespace {

TEST(BurstPace, AFewAtOnceThenOneAnInterval) {
  constexpr Nanoseconds kBegan = 1'000'000 * kSecond;
  BurstPace pace(4, kSecond);
  const auto taken = [&](Nanoseconds now) {
    int count = 0;
    while (pace.take(now)) ++count;
    return count;
  };
  EXPECT_EQ(taken(kBegan), 4);
  EXPECT_EQ(taken(kBegan + kSecond / 2), 0);
  EXPECT_EQ(taken(kBegan + kSecond), 1);
  EXPECT_EQ(taken(kBegan + 3 * kSecond), 2);
  EXPECT_EQ(taken(kBegan + 100 * kSecond), 4) << "what was not used does not pile up";
}

TEST(LogPace, CountsWhatItLeftOut) {
  LogPace pace(kSecond, 2);
  EXPECT_EQ(pace.due(0), 0U);
  EXPECT_EQ(pace.due(0), 0U);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(pace.due(0));
  EXPECT_EQ(pace.due(kSecond), 3U);
}

}  // namespace
}  // namespace isthmus::inter

#include "tests/wan/real_time_allowance.h"

#include <gtest/gtest.h>

namespace isthmus::wan {
namespace {

constexpr Nanoseconds kSpan = RealTimeAllowance::kSpan;

// What judge says after `spans` spans, each of which took `share` of a core.
class Load {
 public:
  std::optional<bool> of(double share) {
    now_ += kSpan;
    cpu_ += static_cast<Nanoseconds>(share * static_cast<double>(kSpan));
    return allowance_.judge(now_, cpu_);
  }

 private:
  Nanoseconds now_ = kSecond, cpu_ = 0;
  RealTimeAllowance allowance_{now_, cpu_};
};

TEST(RealTimeAllowance, StaysWhileOthersHaveTime) {
  Load load;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(load.of(0.45), std::nullopt);
}

TEST(RealTimeAllowance, IsWithdrawnAtHighLoadAndComesBack) {
  Load load;
  EXPECT_EQ(load.of(0.2), std::nullopt);
  EXPECT_EQ(load.of(0.9), false);
  EXPECT_EQ(load.of(1.0), std::nullopt);
  EXPECT_EQ(load.of(0.45), std::nullopt);  // not yet: else it would flutter
  EXPECT_EQ(load.of(0.3), true);
  EXPECT_EQ(load.of(0.45), std::nullopt);
}

TEST(RealTimeAllowance, IsJudgedOnceASpan) {
  RealTimeAllowance allowance(0, 0);
  EXPECT_FALSE(allowance.due(kSpan - 1));
  EXPECT_EQ(allowance.judge(kSpan - 1, kSpan - 1), std::nullopt);
  EXPECT_TRUE(allowance.due(kSpan));
  EXPECT_EQ(allowance.judge(kSpan, kSpan), false);
  EXPECT_FALSE(allowance.due(kSpan + 1));
}

}  // namespace
}  // namespace isthmus::wan

#include "inter/loop.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "base/clock.h"

namespace isthmus::inter {
namespace {

TEST(Loop, BeatsComeAtMultiplesOfTheirPeriod) {
  EXPECT_EQ(next_beat(0, kSecond), kSecond);
  EXPECT_EQ(next_beat(kSecond - 1, kSecond), kSecond);
  EXPECT_EQ(next_beat(kSecond, kSecond), 2 * kSecond);
  EXPECT_EQ(next_beat(7 * kSecond / 4, kSecond / 4), 2 * kSecond);
}

// As who is flooded with messages does, since each turn takes only some of them.
TEST(Loop, HandlersThatPostThemselvesWithoutEndKeepNoTimerWaiting) {
  const auto clock = make_system_clock();
  Loop loop(*clock);
  bool rang = false;
  std::uint64_t turns = 0;
  const auto began = clock->now();
  loop.call_after(kMillisecond, [&] {
    rang = true;
    loop.stop();
  });
  std::function<void()> turn = [&] {
    ++turns;
    if (clock->now() - began < 5 * kSecond)
      loop.post(turn);
    else
      loop.stop();
  };
  loop.post(turn);
  loop.run();
  EXPECT_TRUE(rang) << turns << " turns";
  EXPECT_GT(turns, 0U);
}

}  // namespace
}  // namespace isthmus::inter

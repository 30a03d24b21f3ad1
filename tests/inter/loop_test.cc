#include "inter/loop.h"

#include <gtest/gtest.h>

#include <coroutine>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "inter/sim/simulation.h"

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

// Begins it, as who awaits it does.
void begin(Task<void>& task) {
  std::move(task).operator co_await().await_suspend(std::noop_coroutine());
}

TEST(Loop, ATimerEndsWithTheTaskThatWaitsForIt) {
  sim::Simulation simulation;
  Loop loop(simulation);
  Signal signal(loop);
  bool woke = false;
  const auto wait = [&]() -> Task<void> {
    co_await signal.wait_until(loop.now() + kSecond);
    woke = true;
  };
  const auto sleep = [&]() -> Task<void> {
    co_await loop.sleep(2 * kSecond);
    woke = true;
  };
  std::optional<Task<void>> waiting(wait()), sleeping(sleep());
  begin(*waiting);
  begin(*sleeping);
  EXPECT_EQ(loop.next_timer(), loop.now() + kSecond);
  waiting.reset();
  EXPECT_EQ(loop.next_timer(), loop.now() + 2 * kSecond);
  sleeping.reset();
  EXPECT_EQ(loop.next_timer(), std::nullopt);
  simulation.advance(loop.now() + 3 * kSecond);
  EXPECT_FALSE(loop.run_ready());
  EXPECT_FALSE(woke);
}

TEST(Loop, ATaskWakesBySignalOrTimeWhicheverComesFirst) {
  sim::Simulation simulation;
  Loop loop(simulation);
  Signal signal(loop);
  std::optional<bool> signalled;
  const auto wait = [&]() -> Task<void> {
    signalled = co_await signal.wait_until(loop.now() + kSecond);
  };
  loop.spawn(wait());
  loop.run_ready();
  signal.notify();
  loop.run_ready();
  EXPECT_EQ(signalled, true);
  EXPECT_EQ(loop.next_timer(), std::nullopt);
  loop.spawn(wait());
  loop.run_ready();
  simulation.advance(loop.now() + kSecond);
  loop.run_ready();
  EXPECT_EQ(signalled, false);
}

}  // namespace
}  // namespace isthmus::inter

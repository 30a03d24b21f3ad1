// Clocks that drift and jump, and what lives by them.
#include "inter/sim/simulated_clock.h"

#include <gtest/gtest.h>

#include "inter/sim/simulation.h"

namespace isthmus::inter::sim {
namespace {

TEST(SimulatedClock, Drifts) {
  Simulation simulation;
  const SimulatedClock fast(simulation, 500), slow(simulation, -5000);
  simulation.advance(1000 * kSecond);
  EXPECT_EQ(fast.now(), 1000 * kSecond + 500 * kMillisecond);
  EXPECT_EQ(slow.now(), 995 * kSecond);
  EXPECT_EQ(fast.unix_time(), simulation.unix_time() + 500 * kMillisecond);
}

TEST(SimulatedClock, NeverGoesBack) {
  Simulation simulation;
  const SimulatedClock slow(simulation, -900'000);
  Nanoseconds last = slow.now();
  for (Nanoseconds t = 0; t < 20'000; ++t) {
    simulation.advance(999'990'000 + t);
    EXPECT_GE(slow.now(), last);
    last = slow.now();
  }
}

TEST(SimulatedClock, JumpsInItsCalendarAlone) {
  Simulation simulation;
  SimulatedClock clock(simulation, 100);
  simulation.advance(10 * kSecond);
  const auto now = clock.now(), calendar = clock.unix_time();
  clock.jump(-3600 * kSecond);
  EXPECT_EQ(clock.now(), now);
  EXPECT_EQ(clock.unix_time(), calendar - 3600 * kSecond);
}

TEST(SimulatedClock, BeginsAnywhereWhenItsMachineStarts) {
  Simulation simulation;
  SimulatedClock clock(simulation, 100);
  simulation.advance(10 * kSecond);
  const auto calendar = clock.unix_time();
  clock.restart(77);
  EXPECT_EQ(clock.now(), 77);
  EXPECT_EQ(clock.unix_time(), calendar);
}

// The first instant at which it shows the time, so that a timer is due then and not before.
TEST(SimulatedClock, KnowsWhenATimerIsDue) {
  for (const std::int64_t ppm : {-900'000, -5000, -1, 0, 1, 500, 5000}) {
    Simulation simulation;
    SimulatedClock clock(simulation, ppm);
    simulation.advance(3 * kSecond + 7);
    clock.restart(123'456'789);
    for (const Nanoseconds later : {1LL, 999'999LL, 1'000'001LL, 2'345'678'901LL}) {
      const auto timer = clock.now() + later;
      const auto due = clock.when(timer);
      const auto began = simulation.now();
      simulation.advance(due - 1);
      EXPECT_LT(clock.now(), timer) << ppm << " " << later;
      simulation.advance(due);
      EXPECT_GE(clock.now(), timer) << ppm << " " << later;
      simulation.advance(began);
    }
  }
}

}  // namespace
}  // namespace isthmus::inter::sim

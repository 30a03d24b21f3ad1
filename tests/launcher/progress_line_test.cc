#include "launcher/progress_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "inter/sim/simulation.h"
#include "tests/base/temporary_folder.h"

namespace isthmus::launcher {
namespace {

TEST(Progress, SaysHowFarItIsAndHowLongItTakes) {
  EXPECT_EQ(progress_text({.done = 30, .total = 120, .seconds = 10}, 8),
            "[##------] 30 of 120 seeds, 3.0/s, 30.0 s left");
  EXPECT_EQ(progress_text({.done = 120, .total = 120, .failed = 2, .seconds = 10}, 4),
            "[####] 120 of 120 seeds, 12.0/s, 2 failed");
  // What was done before says nothing of the pace.
  EXPECT_EQ(progress_text({.done = 60, .total = 120, .done_before = 50, .seconds = 10}, 0),
            "60 of 120 seeds, 1.0/s, 1.00 min left");
  EXPECT_EQ(progress_text({.done = 0, .total = 120, .seconds = 10}, 4), "[----] 0 of 120 seeds");
}

TEST(Progress, FitsItsTerminal) {
  const Progress progress{.done = 1200, .total = 4000, .failed = 2, .seconds = 22.6};
  EXPECT_EQ(progress_text(progress, 24, 60),
            "[##------] 1200 of 4000 seeds, 53.1/s, 52.7 s left, 2 failed");
  EXPECT_EQ(progress_text(progress, 24, 41), "1200 of 4000 seeds, 52.7 s left, 2 failed");
  EXPECT_EQ(progress_text(progress, 24, 30), "1200 of 4000 seeds, 2 failed");
  EXPECT_EQ(progress_text(progress, 24, 9), "1200 of 4");
  for (std::size_t columns = 0; columns < 100; ++columns)
    EXPECT_LE(progress_text(progress, 24, columns).size(), columns);
}

TEST(Progress, IsALineNowAndThenWhereThereIsNoTerminal) {
  const TemporaryFolder folder;
  inter::sim::Simulation time;
  auto* out = std::fopen((folder / "out").c_str(), "w");
  {
    ProgressLine line(out, time);
    for (std::uint64_t second = 0; second <= 100; ++second) {
      time.advance(static_cast<Nanoseconds>(second) * kSecond);
      line.show({.done = second, .total = 100, .seconds = static_cast<double>(second)});
    }
  }
  std::fclose(out);
  EXPECT_EQ(contents_of(folder / "out"),
            "30 of 100 seeds, 1.0/s, 1.17 min left\n60 of 100 seeds, 1.0/s, 40.0 s left\n"
            "90 of 100 seeds, 1.0/s, 10.0 s left\n");
}

}  // namespace
}  // namespace isthmus::launcher

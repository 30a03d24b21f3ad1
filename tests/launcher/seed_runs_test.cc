#include "launcher/seed_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <map>

namespace isthmus::launcher {
namespace {

using testing::HasSubstr;

class SeedRunsTest : public testing::Test {
 protected:
  Result<void> run(std::uint64_t seeds, unsigned processes,
                   std::function<SeedResult(std::uint64_t)> each) {
    std::uint64_t next = 1;
    SeedRuns runs;
    runs.processes = processes;
    runs.next = [&]() -> std::optional<std::uint64_t> {
      if (next > seeds) return std::nullopt;
      return next++;
    };
    runs.run = std::move(each);
    runs.done = [&](const SeedResult& result) -> Result<void> {
      EXPECT_TRUE(results_.emplace(result.seed, result).second) << result.seed;
      if (results_.size() >= stop_after_) stop_ = true;
      return {};
    };
    runs.tick = [&] { ++ticks_; };
    return run_seeds(runs, stop_);
  }
  std::atomic<bool> stop_{false};
  std::size_t stop_after_ = 1'000'000;
  std::map<std::uint64_t, SeedResult> results_;
  int ticks_ = 0;
};

TEST_F(SeedRunsTest, EachSeedIsRunOnce) {
  for (const unsigned processes : {1U, 3U, 8U}) {
    results_.clear();
    ASSERT_TRUE(run(50, processes, [](std::uint64_t seed) {
      return SeedResult{seed, seed * seed, 2, 0.5, seed == 17 ? "17 is wrong" : ""};
    }));
    ASSERT_EQ(results_.size(), 50U);
    for (const auto& [seed, result] : results_) {
      EXPECT_EQ(result.events, seed * seed);
      EXPECT_EQ(result.violation, seed == 17 ? "17 is wrong" : "");
    }
  }
  EXPECT_GT(ticks_, 0);
}

TEST_F(SeedRunsTest, NoMoreProcessesThanSeeds) {
  ASSERT_TRUE(run(2, 64, [](std::uint64_t seed) { return SeedResult{.seed = seed}; }));
  EXPECT_EQ(results_.size(), 2U);
}

// The process ends on one seed: that seed failed, and the others are run.
TEST_F(SeedRunsTest, ASeedThatEndsTheProgramHasFailed) {
  ASSERT_TRUE(run(20, 2, [](std::uint64_t seed) {
    if (seed == 5) ::raise(SIGABRT);
    if (seed == 6) ::_exit(3);
    return SeedResult{.seed = seed};
  }));
  ASSERT_EQ(results_.size(), 20U);
  EXPECT_THAT(results_.at(5).violation, HasSubstr("signal 6"));
  EXPECT_THAT(results_.at(6).violation, HasSubstr("exit code 3"));
  EXPECT_EQ(results_.at(7).violation, "");
}

// As the kernel does where memory runs out: that says nothing of the seed.
TEST_F(SeedRunsTest, ASeedWhoseProcessIsKilledHasNoResult) {
  const auto ran = run(20, 2, [](std::uint64_t seed) {
    if (seed == 5) ::raise(SIGKILL);
    return SeedResult{.seed = seed};
  });
  ASSERT_FALSE(ran);
  EXPECT_EQ(ran.error().code, ErrorCode::unavailable);
  EXPECT_THAT(ran.error().text(), HasSubstr("the simulator of seed 5 was killed"));
  EXPECT_FALSE(results_.contains(5));
}

TEST_F(SeedRunsTest, StopsWhenAsked) {
  stop_after_ = 3;
  const auto ran = run(1000, 2, [](std::uint64_t seed) { return SeedResult{.seed = seed}; });
  ASSERT_FALSE(ran);
  EXPECT_EQ(ran.error().code, ErrorCode::cancelled);
  EXPECT_LT(results_.size(), 10U);
}

TEST_F(SeedRunsTest, OneRunApart) {
  EXPECT_EQ(*run_apart([] { return std::string("said"); }, stop_), "said");
  EXPECT_EQ(*run_apart([] { return std::string(); }, stop_), "");
  const auto ends_by = [&](int signal) {
    return run_apart(
        [=]() -> std::string {
          ::raise(signal);
          return "x";
        },
        stop_);
  };
  EXPECT_THAT(*ends_by(SIGABRT), HasSubstr("signal 6"));
  EXPECT_EQ(ends_by(SIGKILL).error().code, ErrorCode::unavailable);
}

}  // namespace
}  // namespace isthmus::launcher

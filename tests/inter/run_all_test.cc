#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "inter/loop.h"
namespace isthmus::inter {
namespace {

// Runs a job when it is told to.
class HandWorkers final : public Workers {
 public:
  void submit(std::function<void()> job, std::function<void()> done, std::uint64_t,
              Urgency) override {
    jobs_.emplace_back(std::move(job), std::move(done));
    most_ = std::max(most_, jobs_.size());
  }
  int parallel() const override { return 1; }
  bool run_one() {
    if (jobs_.empty()) return false;
    const auto [job, done] = std::move(jobs_.front());
    jobs_.pop_front();
    job();
    done();
    return true;
  }
  std::size_t most() const { return most_; }

 private:
  std::deque<std::pair<std::function<void()>, std::function<void()>>> jobs_;
  std::size_t most_ = 0;
};

Task<void> run_and_note(HandWorkers& workers, Loop& loop, std::uint32_t jobs,
                        std::function<Result<void>(std::uint32_t)> job,
                        std::function<Result<void>(std::uint32_t)> done, std::uint32_t at_once,
                        std::optional<Result<void>>& result) {
  result = co_await run_all(workers, loop, jobs, 1, std::move(job), std::move(done), at_once);
}

class RunAllTest : public testing::Test {
 protected:
  // Runs them in order, the loop after each.
  void run(std::uint32_t jobs, std::uint32_t at_once,
           std::function<Result<void>(std::uint32_t)> job) {
    loop_.spawn(run_and_note(
        workers_, loop_, jobs, std::move(job),
        [this](std::uint32_t i) -> Result<void> {
          done_.push_back(i);
          if (i == fails_at_) return Error{ErrorCode::io, "what was done"};
          return {};
        },
        at_once, result_));
    do loop_.run_ready();
    while (workers_.run_one());
  }

  const std::unique_ptr<Clock> clock_ = make_system_clock();
  Loop loop_{*clock_};
  HandWorkers workers_;
  std::vector<std::uint32_t> ran_, done_;
  std::optional<std::uint32_t> fails_at_;
  std::optional<Result<void>> result_;
};

TEST_F(RunAllTest, RunsAllSomeAtATime) {
  run(10, 3, [this](std::uint32_t i) -> Result<void> {
    ran_.push_back(i);
    return {};
  });
  const std::vector<std::uint32_t> all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_EQ(ran_, all);
  EXPECT_EQ(done_, all);
  EXPECT_EQ(workers_.most(), 3U);
  ASSERT_TRUE(result_);
  EXPECT_TRUE(*result_);
}

TEST_F(RunAllTest, OfNoneItReturnsAtOnce) {
  run(0, 3, [](std::uint32_t) -> Result<void> { return {}; });
  ASSERT_TRUE(result_);
  EXPECT_TRUE(*result_);
}

TEST_F(RunAllTest, AfterAFailureItBeginsNothingMore) {
  run(10, 3, [this](std::uint32_t i) -> Result<void> {
    ran_.push_back(i);
    if (i == 1 || i == 3) return Error{ErrorCode::io, std::string("job ") + std::to_string(i)};
    return {};
  });
  EXPECT_EQ(ran_, (std::vector<std::uint32_t>{0, 1, 2, 3})) << "those that the workers had";
  EXPECT_EQ(done_, (std::vector<std::uint32_t>{0}));
  ASSERT_TRUE(result_);
  ASSERT_FALSE(*result_);
  EXPECT_EQ(result_->error().message, "job 1");
}

TEST_F(RunAllTest, WhatTheOwnerCannotUseIsAFailureToo) {
  fails_at_ = 2;
  run(10, 2, [this](std::uint32_t i) -> Result<void> {
    ran_.push_back(i);
    return {};
  });
  EXPECT_EQ(ran_, (std::vector<std::uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(done_, (std::vector<std::uint32_t>{0, 1, 2}));
  ASSERT_TRUE(result_);
  ASSERT_FALSE(*result_);
  EXPECT_EQ(result_->error().message, "what was done");
}

}  // namespace
}  // namespace isthmus::inter

#include "base/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace isthmus {
namespace {

// The owner's thread: runs what is posted to it.
class Owner {
 public:
  std::function<void(std::function<void()>)> poster() {
    return [this](std::function<void()> f) {
      const std::lock_guard lock(mutex_);
      posted_.push_back(std::move(f));
      wake_.notify_one();
    };
  }
  void run_one() {
    std::function<void()> f;
    {
      std::unique_lock lock(mutex_);
      ASSERT_TRUE(
          wake_.wait_for(lock, std::chrono::seconds(30), [this] { return !posted_.empty(); }));
      f = std::move(posted_.front());
      posted_.pop_front();
    }
    f();
  }
  void run_until(const std::function<bool()>& condition) {
    while (!testing::Test::HasFatalFailure() && !condition()) run_one();
  }
  std::size_t waiting() {
    const std::lock_guard lock(mutex_);
    return posted_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> posted_;
};

TEST(Workers, JobsRunElsewhereAndDoneOnTheOwner) {
  Owner owner;
  const auto workers = make_thread_workers(owner.poster(), {});
  const auto me = std::this_thread::get_id();
  std::thread::id job_thread, done_thread;
  int value = 0;
  workers->submit(
      [&] {
        job_thread = std::this_thread::get_id();
        value = 41;
      },
      [&] {
        done_thread = std::this_thread::get_id();
        ++value;
      },
      100);
  owner.run_one();
  EXPECT_NE(job_thread, me);
  EXPECT_EQ(done_thread, me);
  EXPECT_EQ(value, 42);
}

TEST(Workers, EveryJobIsDoneOnceAfterItRan) {
  Owner owner;
  const auto workers = make_thread_workers(owner.poster(), {-1, -1, -1});
  const int n = 5000;
  std::vector<int> ran(n), done(n);
  int early = 0, all = 0;
  for (int i = 0; i < n; ++i)
    workers->submit([&, i] { ++ran[i]; },
                    [&, i] {
                      early += ran[i] == 0;
                      ++done[i];
                      ++all;
                    },
                    0);
  owner.run_until([&] { return all == n; });
  EXPECT_EQ(early, 0);
  EXPECT_EQ(ran, std::vector<int>(n, 1));
  EXPECT_EQ(done, std::vector<int>(n, 1));
  EXPECT_EQ(owner.waiting(), 0u);
}

TEST(Workers, OneWorkerKeepsTheOrder) {
  Owner owner;
  const auto workers = make_thread_workers(owner.poster(), {-1});
  std::vector<int> order;
  std::vector<int> order_done;
  for (int i = 0; i < 100; ++i)
    workers->submit([&order, i] { order.push_back(i); },
                    [&order_done, i] { order_done.push_back(i); }, 0);
  owner.run_until([&] { return order_done.size() == 100; });
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
  EXPECT_EQ(order_done, order);
}

// Several short jobs may be told of at once; but not after a long one that follows them.
TEST(Workers, TheOwnerHearsOfAJobBeforeALongOneIsDone) {
  Owner owner;
  const auto workers = make_thread_workers(owner.poster(), {-1});
  std::atomic<bool> submitted{false}, heard{false}, finished{false};
  workers->submit(
      [&] {
        while (!submitted) std::this_thread::yield();
      },
      [&] { heard = true; }, 0);
  workers->submit(
      [&] {
        while (!heard) std::this_thread::yield();
      },
      [&] { finished = true; }, 1 << 30);
  submitted = true;
  owner.run_until([&] { return heard.load(); });
  heard = true;  // also where it was not
  owner.run_until([&] { return finished.load(); });
}

TEST(Workers, PromptJobsPassABusyWorkerAndBackgroundJobsWaitForNormalOnes) {
  Owner owner;
  const auto workers = make_thread_workers(owner.poster(), {-1});
  std::atomic<bool> running{false}, finish{false};
  std::vector<int> order;
  workers->submit(
      [&] {
        running = true;
        while (!finish) std::this_thread::yield();
      },
      [] {}, 0, Urgency::background);
  while (!running) std::this_thread::yield();
  bool last = false;
  workers->submit([&] { order.push_back(3); }, [&] { last = true; }, 0, Urgency::background);
  workers->submit([&] { order.push_back(2); }, [] {}, 0);
  workers->submit([&] { order.push_back(1); }, [] {}, 0, Urgency::prompt);
  owner.run_one();  // the prompt one, while the first still runs
  EXPECT_EQ(order, std::vector<int>({1}));
  finish = true;
  owner.run_until([&] { return last; });
  EXPECT_EQ(order, std::vector<int>({1, 2, 3}));
}

TEST(Workers, TheDestructorFinishesWhatRunsAndDropsTheRest) {
  Owner owner;
  auto workers = make_thread_workers(owner.poster(), {-1});
  std::atomic<bool> running{false}, finish{false}, finished{false}, dropped_ran{false};
  auto token = std::make_shared<int>(0);
  workers->submit(
      [&] {
        running = true;
        while (!finish) std::this_thread::yield();
        finished = true;
      },
      [] {}, 0);
  workers->submit([&, token] { dropped_ran = true; }, [&, token] { dropped_ran = true; }, 0);
  while (!running) std::this_thread::yield();
  EXPECT_EQ(token.use_count(), 3);

  std::thread destroying([&] { workers.reset(); });
  while (token.use_count() > 1) std::this_thread::yield();  // the waiting job is gone
  EXPECT_FALSE(finished);
  finish = true;
  destroying.join();
  EXPECT_TRUE(finished);
  while (owner.waiting() > 0) owner.run_one();
  EXPECT_FALSE(dropped_ran);
}

}  // namespace
}  // namespace isthmus

#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <stdexcept>
#include <thread>

namespace isthmus {
namespace {

TEST(ThreadPool, RunsEveryTaskOnceOnAValidWorker) {
  for (const std::size_t workers : {1u, 2u, 3u, 5u}) {
    ThreadPool pool(std::vector<int>(workers, -1));
    ASSERT_EQ(pool.workers(), workers);
    for (const std::size_t tasks : {0u, 1u, 2u, 3u, 7u, 64u, 1000u}) {
      std::vector<int> runs(tasks);  // plain: what tasks wrote must be visible afterwards
      std::atomic<bool> valid{true};
      pool.parallel_for(tasks, [&](std::size_t task, std::size_t worker) {
        ++runs[task];
        if (worker >= workers) valid = false;
      });
      EXPECT_TRUE(valid);
      EXPECT_EQ(runs, std::vector<int>(tasks, 1)) << workers << " workers";
    }
  }
}

TEST(ThreadPool, TwoTasksNeverShareAWorkerAtOnce) {
  ThreadPool pool({-1, -1, -1});
  std::vector<std::atomic<int>> inside(pool.workers());
  std::atomic<int> collisions{0};
  pool.parallel_for(3000, [&](std::size_t, std::size_t worker) {
    if (inside[worker].fetch_add(1) != 0) ++collisions;
    inside[worker].fetch_sub(1);
  });
  EXPECT_EQ(collisions, 0);
}

TEST(ThreadPool, ManySmallBatchesFollowEachOther) {
  ThreadPool pool({-1, -1, -1});
  std::vector<std::uint64_t> sums(8);
  for (std::uint64_t batch = 0; batch < 5'000; ++batch)
    pool.parallel_for(2 + batch % 7, [&](std::size_t task, std::size_t) { sums[task] += batch; });
  std::uint64_t expected = 0;
  for (std::uint64_t batch = 0; batch < 5'000; ++batch) expected += (2 + batch % 7) * batch;
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), std::uint64_t{0}), expected);
}

TEST(ThreadPool, WakesThreadsThatHaveGoneToSleep) {
  ThreadPool pool({-1, -1});
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // longer than they spin
    std::atomic<int> sum{0};
    pool.parallel_for(10, [&](std::size_t task, std::size_t) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      sum += static_cast<int>(task);
    });
    EXPECT_EQ(sum, 45);
  }
}

TEST(ThreadPool, SharesOneBatchAmongItsThreads) {
  ThreadPool pool({-1, -1});
  std::vector<int> by_worker(2);
  // The first task holds its worker until the other worker has taken the second.
  std::atomic<int> started{0};
  pool.parallel_for(2, [&](std::size_t, std::size_t worker) {
    ++started;
    while (started < 2) std::this_thread::yield();
    ++by_worker[worker];
  });
  EXPECT_EQ(by_worker, (std::vector<int>{1, 1}));
}

TEST(ThreadPool, EndsWithoutEverHavingWorked) {
  for (int i = 0; i < 50; ++i) ThreadPool pool({-1, -1, -1});
}

TEST(ThreadPool, PinsItsThreadsToTheirCpus) {
  const auto cpus = available_cpus();
  ASSERT_FALSE(cpus.empty());
  std::thread([&] {  // its own thread: the caller is pinned too
    ThreadPool pool(std::vector<int>(2, cpus.back()));
    std::vector<std::vector<int>> seen(2);
    std::atomic<int> started{0};
    pool.parallel_for(2, [&](std::size_t, std::size_t worker) {
      ++started;
      while (started < 2) std::this_thread::yield();
      seen[worker] = available_cpus();
    });
    EXPECT_EQ(seen[0], std::vector<int>{cpus.back()});
    EXPECT_EQ(seen[1], std::vector<int>{cpus.back()});
  })
      .join();
}

TEST(ThreadPool, ConfinesAThreadAndThoseItStarts) {
  std::thread([] {
    const auto cpus = available_cpus();
    ASSERT_TRUE(confine_this_thread({&cpus.back(), 1}));
    EXPECT_EQ(available_cpus(), std::vector<int>{cpus.back()});
    std::thread([&] { EXPECT_EQ(available_cpus(), std::vector<int>{cpus.back()}); }).join();
    EXPECT_TRUE(confine_this_thread(cpus));
    EXPECT_EQ(available_cpus(), cpus);
    EXPECT_FALSE(confine_this_thread({}));
  }).join();
}

TEST(ThreadPool, PinningToACpuThatIsNotThereSaysSo) {
  std::thread([] {
    const auto before = available_cpus();
    EXPECT_FALSE(pin_this_thread(1023));
    EXPECT_FALSE(pin_this_thread(1 << 20));
    EXPECT_FALSE(pin_this_thread(-1));
    EXPECT_EQ(available_cpus(), before);
  }).join();
}

}  // namespace
}  // namespace isthmus

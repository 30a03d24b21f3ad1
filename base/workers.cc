#include "base/workers.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/thread_pool.h"

namespace isthmus {
namespace {

constexpr int kDiskThreads = 2;  // one writes while another waits for a sync

struct Job {
  std::function<void()> run;
  std::function<void()> done;
};

// Jobs for some threads; those in `first` before those in `second`.
struct Queue {
  std::condition_variable wake;
  std::deque<Job> first, second;
};

class ThreadWorkers final : public Workers {
 public:
  ThreadWorkers(std::function<void(std::function<void()>)> post, const std::vector<int>& cpus)
      : post_(std::move(post)), parallel_(cpus.empty() ? 2 : static_cast<int>(cpus.size())) {
    for (int i = 0; i < parallel_; ++i)
      threads_.emplace_back([this, cpu = cpus.empty() ? -1 : cpus[static_cast<std::size_t>(i)]] {
        if (cpu >= 0) pin_this_thread(cpu);
        work(bulk_);
      });
    threads_.emplace_back([this] { work(prompt_); });
    for (int i = 0; i < kDiskThreads; ++i) threads_.emplace_back([this] { work(disk_); });
  }
  ~ThreadWorkers() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      for (auto* queue : {&bulk_, &prompt_, &disk_}) {
        queue->first.clear();
        queue->second.clear();
      }
    }
    bulk_.wake.notify_all();
    prompt_.wake.notify_all();
    disk_.wake.notify_all();
    for (auto& thread : threads_) thread.join();
  }
  void submit(std::function<void()> job, std::function<void()> done, std::uint64_t,
              Urgency urgency) override {
    auto& queue = urgency == Urgency::prompt ? prompt_ : urgency == Urgency::disk ? disk_ : bulk_;
    {
      const std::lock_guard lock(mutex_);
      auto& jobs = urgency == Urgency::background ? queue.second : queue.first;
      jobs.push_back({std::move(job), std::move(done)});
    }
    queue.wake.notify_one();
  }

  int parallel() const override { return parallel_; }

 private:
  void work(Queue& queue) {
    for (;;) {
      Job job;
      {
        std::unique_lock lock(mutex_);
        queue.wake.wait(lock,
                        [&] { return stopping_ || !queue.first.empty() || !queue.second.empty(); });
        if (stopping_) return;
        auto& jobs = queue.first.empty() ? queue.second : queue.first;
        job = std::move(jobs.front());
        jobs.pop_front();
      }
      job.run();
      post_(std::move(job.done));
    }
  }

  std::function<void(std::function<void()>)> post_;
  const int parallel_;
  std::mutex mutex_;
  Queue bulk_, prompt_, disk_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Workers> make_thread_workers(std::function<void(std::function<void()>)> post,
                                             const std::vector<int>& cpus) {
  return std::make_unique<ThreadWorkers>(std::move(post), cpus);
}

}  // namespace isthmus

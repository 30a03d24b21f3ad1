#include "base/workers.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/thread_pool.h"

namespace isthmus {
namespace {

constexpr int kDiskThreads = 2;  // one writes while another waits for a sync

struct Job {
  std::function<void()> run;
  std::function<void()> done;
  std::uint64_t cost_bytes;
};

// Jobs for some threads; those in `first` before those in `second`.
struct Queue {
  // What a job costs that takes no longer than Done::kTogether, if no disk makes it wait.
  static constexpr std::uint64_t kShortBytes = 8 << 20;

  const bool waits_for_disk = false;
  std::condition_variable wake = {};
  std::deque<Job> first = {}, second = {};

  bool empty() const { return first.empty() && second.empty(); }
  bool short_one_is_next() const {
    const auto& jobs = first.empty() ? second : first;
    return !waits_for_disk && !jobs.empty() && jobs.front().cost_bytes <= kShortBytes;
  }
  Job take() {
    auto& jobs = first.empty() ? second : first;
    Job job = std::move(jobs.front());
    jobs.pop_front();
    return job;
  }
};

// What a worker has done and the owner does not know yet: waking it for each job of a tenth of a
// millisecond costs as much as a part of the job, so it hears of several at once.
class Done {
 public:
  static constexpr auto kTogether = std::chrono::milliseconds(1);

  bool any() const { return !all_.empty(); }
  bool may_wait() const { return Time::now() - since_ < kTogether; }
  void add(std::function<void()> done) {
    if (all_.empty()) since_ = Time::now();
    all_.push_back(std::move(done));
  }
  std::function<void()> take() {
    return [all = std::exchange(all_, {})] {
      for (const auto& done : all) done();
    };
  }

 private:
  using Time = std::chrono::steady_clock;

  std::vector<std::function<void()>> all_;
  Time::time_point since_;
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
  void submit(std::function<void()> job, std::function<void()> done, std::uint64_t cost_bytes,
              Urgency urgency) override {
    auto& queue = urgency == Urgency::prompt ? prompt_ : urgency == Urgency::disk ? disk_ : bulk_;
    {
      const std::lock_guard lock(mutex_);
      auto& jobs = urgency == Urgency::background ? queue.second : queue.first;
      jobs.push_back({std::move(job), std::move(done), cost_bytes});
    }
    queue.wake.notify_one();
  }

  int parallel() const override { return parallel_; }

 private:
  void work(Queue& queue) {
    Done done;
    std::unique_lock lock(mutex_);
    for (;;) {
      if (done.any() && !(done.may_wait() && queue.short_one_is_next())) {
        lock.unlock();
        post_(done.take());
        lock.lock();
      }
      queue.wake.wait(lock, [&] { return stopping_ || !queue.empty(); });
      if (stopping_) return;
      auto job = queue.take();
      lock.unlock();
      job.run();
      job.run = nullptr;  // what it holds goes while nobody waits for the lock
      done.add(std::move(job.done));
      lock.lock();
    }
  }

  std::function<void(std::function<void()>)> post_;
  const int parallel_;
  std::mutex mutex_;
  Queue bulk_, prompt_, disk_{.waits_for_disk = true};
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Workers> make_thread_workers(std::function<void(std::function<void()>)> post,
                                             const std::vector<int>& cpus) {
  return std::make_unique<ThreadWorkers>(std::move(post), cpus);
}

}  // namespace isthmus

#include "base/workers.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/thread_pool.h"

namespace isthmus {
namespace {

struct Job {
  std::function<void()> run;
  std::function<void()> done;
};

class ThreadWorkers final : public Workers {
 public:
  ThreadWorkers(std::function<void(std::function<void()>)> post, const std::vector<int>& cpus)
      : post_(std::move(post)) {
    const std::size_t count = cpus.empty() ? 2 : cpus.size();
    for (std::size_t i = 0; i < count; ++i)
      threads_.emplace_back([this, cpu = cpus.empty() ? -1 : cpus[i]] {
        if (cpu >= 0) pin_this_thread(cpu);
        work();
      });
  }
  ~ThreadWorkers() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      jobs_.clear();
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }
  void submit(std::function<void()> job, std::function<void()> done, std::uint64_t) override {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back({std::move(job), std::move(done)});
    }
    wake_.notify_one();
  }

 private:
  void work() {
    for (;;) {
      Job job;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
        if (stopping_) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      job.run();
      post_(std::move(job.done));
    }
  }

  std::function<void(std::function<void()>)> post_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Workers> make_thread_workers(std::function<void(std::function<void()>)> post,
                                             const std::vector<int>& cpus) {
  return std::make_unique<ThreadWorkers>(std::move(post), cpus);
}

}  // namespace isthmus

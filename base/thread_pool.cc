#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

namespace isthmus {
namespace {

// Kernels follow each other within microseconds; a short spin saves the system calls between them.
constexpr int kSpins = 4000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(const std::vector<int>& cpus) {
  if (!cpus.empty() && cpus[0] >= 0) pin_this_thread(cpus[0]);
  for (std::size_t i = 1; i < cpus.size(); ++i)
    threads_.emplace_back([this, i, cpu = cpus[i]] {
      if (cpu >= 0) pin_this_thread(cpu);
      serve(i);
    });
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  batch_.fetch_add(1);
  batch_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void ThreadPool::run(std::size_t tasks, Call call, const void* context) {
  if (threads_.empty() || tasks <= 1) {
    for (std::size_t i = 0; i < tasks; ++i) call(context, i, 0);
    return;
  }
  call_ = call;
  context_ = context;
  tasks_ = tasks;
  next_.store(0, std::memory_order_relaxed);
  working_.store(threads_.size(), std::memory_order_relaxed);
  batch_.fetch_add(1, std::memory_order_release);
  batch_.notify_all();
  take_tasks(0);
  for (int spin = 0;; ++spin) {
    const auto left = working_.load(std::memory_order_acquire);
    if (left == 0) break;
    if (spin < kSpins)
      relax();
    else
      working_.wait(left, std::memory_order_acquire);
  }
}

void ThreadPool::take_tasks(std::size_t worker) {
  for (;;) {
    const auto task = next_.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks_) return;
    call_(context_, task, worker);
  }
}

void ThreadPool::serve(std::size_t worker) {
  std::uint32_t seen = 0;
  for (;;) {
    for (int spin = 0; batch_.load(std::memory_order_acquire) == seen; ++spin) {
      if (spin < kSpins)
        relax();
      else
        batch_.wait(seen, std::memory_order_acquire);
    }
    // A batch begins only when all threads finished the one before, so none is missed.
    ++seen;
    if (stopping_) return;
    take_tasks(worker);
    if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) working_.notify_one();
  }
}

bool pin_this_thread(int cpu) { return confine_this_thread({&cpu, 1}); }

bool confine_this_thread(std::span<const int> cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
    CPU_SET(cpu, &set);
  }
  return pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0;
}

std::vector<int> available_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

}  // namespace isthmus

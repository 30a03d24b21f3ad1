// ThreadPool: the compute threads of a rank, pinned, for work cut into tasks by shape alone. Which
// thread runs a task is not defined; results must not depend on it. The calling thread works too.
// Not for the gateway: see base/workers.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <type_traits>
#include <vector>

namespace isthmus {

class ThreadPool {
 public:
  // One thread per entry of `cpus`, pinned there; the caller becomes the first and is pinned too.
  // An entry of -1 is not pinned.
  explicit ThreadPool(const std::vector<int>& cpus);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  std::size_t workers() const { return threads_.size() + 1; }

  // Calls body(task, worker) for every task in [0, tasks), worker in [0, workers()); returns when
  // all are done. The body must not throw, nor call the pool. Allocates nothing.
  template <class Body>
  void parallel_for(std::size_t tasks, const Body& body) {
    run(
        tasks,
        [](const void* context, std::size_t task, std::size_t worker) {
          (*static_cast<const Body*>(context))(task, worker);
        },
        &body);
  }

 private:
  using Call = void (*)(const void*, std::size_t, std::size_t);
  void run(std::size_t tasks, Call call, const void* context);
  void take_tasks(std::size_t worker);
  void serve(std::size_t worker);

  std::vector<std::thread> threads_;
  Call call_ = nullptr;
  const void* context_ = nullptr;
  std::size_t tasks_ = 0;
  std::atomic<std::size_t> next_{0};
  std::atomic<std::size_t> working_{0};  // threads that have not finished this batch
  std::atomic<std::uint32_t> batch_{0};  // futex: changes when there is work, or the end
  std::atomic<bool> stopping_{false};
};

// Pins the calling thread; false when the machine has no such CPU or forbids it.
bool pin_this_thread(int cpu);

// Lets the calling thread, and every thread it starts from now on, run on these CPUs only. False
// when the system does not let us, or none of them is there.
bool confine_this_thread(std::span<const int> cpus);

// The CPUs this process may run on, ascending.
std::vector<int> available_cpus();

}  // namespace isthmus

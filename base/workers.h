// Workers: threads that encode, hash, write and reduce for a thread that owns all state. A job runs
// on some worker; its `done` runs on the owner's thread, so state needs no lock. In the simulator
// (inter/sim) jobs run inline, at a cost in virtual time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace isthmus {

enum class Urgency {
  prompt,  // small, and others wait for it: never behind jobs of the other kinds
  normal,
  background,  // bulk that nobody waits for: when no normal job is there to start
  disk,        // waits for the disk rather than for a CPU: beside all others
};

class Workers {
 public:
  virtual ~Workers() = default;
  // `cost_bytes` is how much data the job touches: what the simulator turns into time. Jobs of one
  // urgency start in the order of submission. The owner may hear of short jobs that follow each
  // other together, up to a millisecond later. The destructor finishes the running jobs and drops
  // the rest; their `done` is not called.
  virtual void submit(std::function<void()> job, std::function<void()> done,
                      std::uint64_t cost_bytes, Urgency urgency = Urgency::normal) = 0;
  // Normal and background jobs that run at once, at most.
  virtual int parallel() const = 0;
};

// `post` must hand a function to the owner's thread, from any thread. `cpus`: where to pin, one
// worker each; empty: two unpinned. Prompt jobs have an unpinned thread of their own, those that
// wait for the disk have two.
std::unique_ptr<Workers> make_thread_workers(std::function<void(std::function<void()>)> post,
                                             const std::vector<int>& cpus);

}  // namespace isthmus

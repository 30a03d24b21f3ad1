// SimulatedWorkers: one worker, and one each for prompt jobs and the disk, as of a gateway with
// `workers = 1`, but for its second thread for the disk. Jobs run in the simulation's one thread,
// half-way through the virtual time that they cost; a crash before that loses them.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "base/assert.h"
#include "base/random.h"
#include "base/workers.h"
#include "inter/sim/simulated_disk.h"
#include "inter/sim/simulation.h"

namespace isthmus::inter::sim {

class SimulatedWorkers final : public Workers {
 public:
  // What jobs do on `disk` takes its time as well.
  SimulatedWorkers(Simulation& simulation, Random random, int actor, SimulatedDisk& disk)
      : simulation_(simulation), random_(random), actor_(actor), disk_(disk) {}

  void submit(std::function<void()> job, std::function<void()> done, std::uint64_t cost_bytes,
              Urgency urgency) override {
    // 1 GB/s, and now and then a long pause: a machine that is busy.
    const double pause = random_.chance(0.05) ? 0.2 * random_.uniform() : 0;
    const auto cost = 20 * kMicrosecond + static_cast<Nanoseconds>(cost_bytes) +
                      static_cast<Nanoseconds>(pause * 1e9);
    auto& worker = urgency == Urgency::prompt ? prompt_
                   : urgency == Urgency::disk ? of_disk_
                                              : bulk_;
    auto& jobs = urgency == Urgency::background ? worker.second : worker.first;
    jobs.push_back({std::move(job), std::move(done), cost});
    if (!worker.busy) start_next(worker);
  }

  int parallel() const override { return 1; }
  Nanoseconds waited_for_disk() const { return waited_for_disk_; }  // of all jobs so far

 private:
  struct Job {
    std::function<void()> run, done;
    Nanoseconds cost = 0;
  };
  struct Worker {
    bool busy = false;
    std::deque<Job> first, second;  // those in `first` first
  };

  void start_next(Worker& worker) {
    auto& jobs = worker.first.empty() ? worker.second : worker.first;
    worker.busy = !jobs.empty();
    if (jobs.empty()) return;
    auto job = std::move(jobs.front());
    jobs.pop_front();
    const auto half = job.cost / 2, rest = job.cost - half;
    simulation_.after(half, actor_,
                      [this, &worker, rest, alive = std::weak_ptr(alive_), run = std::move(job.run),
                       done = std::move(job.done)]() mutable {
                        if (alive.expired()) return;
                        disk_.begin_job();
                        run();
                        const auto wait = disk_.end_job();
                        if (alive.expired()) return;  // the job was where the process crashed
                        // It would hold up those that wait for a CPU, or for news of what was done.
                        ISTHMUS_ASSERT(wait == 0 || &worker != &bulk_);
                        waited_for_disk_ += wait;
                        simulation_.after(rest + wait, actor_,
                                          [this, &worker, alive, done = std::move(done)] {
                                            if (alive.expired()) return;
                                            start_next(worker);
                                            done();
                                          });
                      });
  }

  Simulation& simulation_;
  Random random_;
  const int actor_;
  SimulatedDisk& disk_;
  Worker bulk_, prompt_, of_disk_;
  Nanoseconds waited_for_disk_ = 0;
  std::shared_ptr<int> alive_ =
      std::make_shared<int>(0);  // seen by events that outlive the process
};

}  // namespace isthmus::inter::sim

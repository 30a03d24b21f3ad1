// SimulatedWorkers: jobs run in the simulation's one thread, half-way through the virtual time that
// they cost; a crash before that loses them.
#pragma once

#include <functional>
#include <memory>

#include "base/random.h"
#include "base/workers.h"
#include "inter/sim/simulation.h"

namespace isthmus::inter::sim {

class SimulatedWorkers final : public Workers {
 public:
  SimulatedWorkers(Simulation& simulation, Random random, int actor)
      : simulation_(simulation), random_(random), actor_(actor) {}

  void submit(std::function<void()> job, std::function<void()> done,
              std::uint64_t cost_bytes) override {
    // 1 GB/s, and now and then a long pause: a disk that syncs, a machine that is busy.
    const double pause = random_.chance(0.05) ? 0.2 * random_.uniform() : 0;
    const auto cost = 20 * kMicrosecond + static_cast<Nanoseconds>(cost_bytes) +
                      static_cast<Nanoseconds>(pause * 1e9);
    simulation_.after(cost / 2, actor_,
                      [=, this, alive = std::weak_ptr(alive_), job = std::move(job),
                       done = std::move(done)]() mutable {
                        if (alive.expired()) return;
                        job();
                        if (alive.expired()) return;  // the job was where the process crashed
                        simulation_.after(cost - cost / 2, actor_, [alive, done = std::move(done)] {
                          if (!alive.expired()) done();
                        });
                      });
  }

 private:
  Simulation& simulation_;
  Random random_;
  const int actor_;
  std::shared_ptr<int> alive_ =
      std::make_shared<int>(0);  // seen by events that outlive the process
};

}  // namespace isthmus::inter::sim

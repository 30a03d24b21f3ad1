// SimulatedProcess: one life of a gateway's process: a gateway, and what the world is to it. Its
// destruction is a crash: nothing is said or written any more.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/event_log.h"
#include "inter/gateway.h"
#include "inter/sim/simulated_clock.h"
#include "inter/sim/simulated_disk.h"
#include "inter/sim/simulated_keys.h"
#include "inter/sim/simulated_network.h"
#include "inter/sim/simulated_workers.h"
#include "inter/sim/simulation.h"

namespace isthmus::inter::sim {

class SimulatedProcess {
 public:
  // What outlives the process.
  struct World {
    Simulation& simulation;
    SimulatedNetwork& network;
    SimulatedDisk& disk;
    Ranks& ranks;
    int actor;  // whose events these are in the simulation
    VoteWatch* votes = nullptr;
    const SimulatedClock* clock = nullptr;  // none: the simulation's
  };
  // `life`: another one each time.
  SimulatedProcess(const World& world, const security::Roster& roster, SiteId self,
                   const GatewayOptions& options, const Random& life,
                   std::function<void(const Event&)> on_event);
  ~SimulatedProcess();
  SimulatedProcess(const SimulatedProcess&) = delete;
  SimulatedProcess& operator=(const SimulatedProcess&) = delete;

  Gateway& gateway() { return *gateway_; }
  const Gateway& gateway() const { return *gateway_; }
  Loop& loop() { return loop_; }
  // What run() ended with, if with an error.
  const std::optional<Error>& failure() const { return failure_; }
  bool ended() const { return ended_; }  // run() has, and a real process would
  // What it still says is heard by nobody.
  void mute() { wire_->mute(); }
  // It stands still, or goes on: as SimulatedWire::pause().
  void pause_wire() { wire_->pause(); }
  void resume_wire() { wire_->resume(); }
  // What its wire and its workers say of it, so far.
  std::uint64_t bytes_received(GatewayId peer) const { return wire_->bytes_received(peer); }
  Nanoseconds waited_for_disk() const { return workers_->waited_for_disk(); }
  // When the next timer of its loop is due, in the simulation's time.
  std::optional<Nanoseconds> next_timer() const;

 private:
  Task<void> live();

  const SimulatedClock* clock_;
  mutable std::pair<Nanoseconds, Nanoseconds> due_{-1, 0};  // of one timer, as it was asked last
  Loop loop_;
  EventLog log_;
  SimulatedSigner signer_;
  SimulatedVerifier verifier_;
  std::unique_ptr<SimulatedWorkers> workers_;
  std::unique_ptr<SimulatedWire> wire_;
  std::unique_ptr<Gateway> gateway_;
  std::optional<Error> failure_;
  bool ended_ = false;
};

}  // namespace isthmus::inter::sim

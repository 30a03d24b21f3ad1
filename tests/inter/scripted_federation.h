// A simulated federation whose faults the test chooses, instead of a seed: whole gateways in one
// thread and in virtual time, as in inter/sim/federation.h.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "inter/gateway.h"
#include "inter/sim/simulated_disk.h"
#include "inter/sim/simulated_network.h"
#include "inter/sim/simulated_process.h"
#include "inter/sim/simulation.h"
#include "inter/sim/synthetic_ranks.h"
#include "tests/inter/puppet.h"

namespace isthmus::inter {

class ScriptedFederation {
 public:
  struct Options {
    std::vector<Nanoseconds> compute;  // of each site's inner steps, ± 30 %; ids are from 1
    std::set<SiteId> without_vote;
    std::set<SiteId> late;     // until start()
    std::set<SiteId> puppets;  // without a gateway
    std::int64_t elements = 2000;
    std::int64_t tensors = 1;  // of as many elements each, so that a state has as many leaves
    sim::NetworkFaults network;
    std::uint64_t network_seed = 1;
    GatewayOptions gateway;
    std::function<void(SiteId, GatewayOptions&)> adjust = [](SiteId, GatewayOptions&) {};
  };
  explicit ScriptedFederation(Options options);
  ScriptedFederation(const ScriptedFederation&) = delete;
  ScriptedFederation& operator=(const ScriptedFederation&) = delete;

  // False when `limit` has gone by, or nothing is left to happen.
  bool run_until(const std::function<bool()>& condition, Nanoseconds limit);
  void run_for(Nanoseconds time);

  void start(SiteId site);
  // Like kill -9 of the machine: what was not synced is gone.
  void kill(SiteId site);
  // Of two that are down.
  void swap_disks(SiteId a, SiteId b) { std::swap(sites_[a - 1].disk, sites_[b - 1].disk); }
  const security::Roster& roster() const { return roster_; }
  // Of the next epoch: the same sites, of which these vote.
  security::Roster newer_roster(const std::set<SiteId>& voters) const;
  // From its next start on.
  void give_roster(SiteId site, const security::Roster& roster) { newer_rosters_[site] = roster; }
  // The options of gateways that are started from now on.
  void change(const std::function<void(GatewayOptions&)>& change) { change(options_.gateway); }
  Gateway& gateway(SiteId site) { return process(site).gateway(); }
  sim::SimulatedProcess& process(SiteId site) { return *sites_[site - 1].process; }
  Puppet& puppet(SiteId site) { return *sites_[site - 1].puppet; }
  sim::SimulatedDisk& disk(SiteId site) { return *sites_[site - 1].disk; }
  const ModelLayout& layout() const { return layout_; }
  sim::SyntheticRanks& ranks(SiteId site) { return *sites_[site - 1].ranks; }
  // Its ranks are gone, and its gateway knows.
  void end_ranks(SiteId site);
  // Both ways.
  void cut(SiteId a, SiteId b, bool cut);
  // The rate of its access link.
  void set_access(SiteId site, double bytes_per_second) {
    network_.set_access(site, bytes_per_second);
  }
  // Both ways, of the bulk lane alone.
  void cut_bulk(SiteId a, SiteId b, bool cut) { network_.cut_bulk({a, 0}, {b, 0}, cut); }
  // From everyone.
  void cut_off(SiteId site, bool cut);
  Nanoseconds now() const { return simulation_.now(); }
  std::uint64_t step(SiteId site);   // of its state; 0: none yet
  StepId step_at_hand(SiteId site);  // the one after it, of a site that has a run
  bool finished() const;
  // Of the site, in this run.
  std::size_t events(SiteId site, std::string_view id) const;

 private:
  struct Site {
    std::unique_ptr<sim::SimulatedDisk> disk;
    std::unique_ptr<sim::SyntheticRanks> ranks;
    std::vector<std::string> events;
    std::unique_ptr<sim::SimulatedProcess> process;
    std::unique_ptr<Puppet> puppet;

    Loop* loop() { return process ? &process->loop() : puppet ? &puppet->loop : nullptr; }
  };

  sim::Simulation simulation_;
  Options options_;
  sim::SimulatedNetwork network_;
  ModelLayout layout_;
  security::Roster roster_;
  std::map<SiteId, security::Roster> newer_rosters_;
  std::vector<Site> sites_;
};

inline double sum_of(const WaitStatus& waits) {
  return waits.computing_s + waits.transfer_s + waits.straggler_s + waits.agreement_s +
         waits.applying_s;
}

// A short run that waits a little for those that are late.
inline ScriptedFederation::Options options_of(std::vector<Nanoseconds> compute) {
  ScriptedFederation::Options options;
  options.compute = std::move(compute);
  options.gateway.sync.outer_steps = 6;
  options.gateway.sync.chunk_elements = 256;
  options.gateway.sync.absent_steps = 2;
  options.gateway.first_wait = 20 * kSecond;
  options.gateway.straggler_wait = 120 * kSecond;
  return options;
}

}  // namespace isthmus::inter

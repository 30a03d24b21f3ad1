// A simulated federation whose faults the test chooses, instead of a seed: whole gateways in one
// thread and in virtual time, as in inter/sim/federation.h.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "inter/gateway.h"
#include "inter/sim/simulated_disk.h"
#include "inter/sim/simulated_network.h"
#include "inter/sim/simulated_process.h"
#include "inter/sim/simulation.h"
#include "inter/sim/synthetic_ranks.h"

namespace isthmus::inter {

class ScriptedFederation {
 public:
  struct Options {
    std::vector<Nanoseconds> compute;  // of each site's inner steps, ± 30 %; ids are from 1
    std::uint32_t voters = 7;          // the first ones
    std::int64_t elements = 2000;
    sim::NetworkFaults network;
    GatewayOptions gateway;
    std::function<void(SiteId, GatewayOptions&)> adjust = [](SiteId, GatewayOptions&) {};
  };
  explicit ScriptedFederation(Options options);
  ScriptedFederation(const ScriptedFederation&) = delete;
  ScriptedFederation& operator=(const ScriptedFederation&) = delete;

  // False when `limit` has gone by, or nothing is left to happen.
  bool run_until(const std::function<bool()>& condition, Nanoseconds limit);
  void run_for(Nanoseconds time);

  Gateway& gateway(SiteId site) { return process(site).gateway(); }
  sim::SimulatedProcess& process(SiteId site) { return *sites_[site - 1].process; }
  sim::SyntheticRanks& ranks(SiteId site) { return *sites_[site - 1].ranks; }
  // Its ranks are gone, and its gateway knows.
  void end_ranks(SiteId site);
  // From everyone, both ways.
  void cut_off(SiteId site, bool cut);
  Nanoseconds now() const { return simulation_.now(); }
  bool finished() const;
  // Of the site, in this run.
  std::size_t events(SiteId site, std::string_view id) const;

 private:
  struct Site {
    std::unique_ptr<sim::SimulatedDisk> disk;
    std::unique_ptr<sim::SyntheticRanks> ranks;
    std::vector<std::string> events;
    std::unique_ptr<sim::SimulatedProcess> process;
  };

  sim::Simulation simulation_;
  Options options_;
  sim::SimulatedNetwork network_;
  ModelLayout layout_;
  security::Roster roster_;
  std::vector<Site> sites_;
};

}  // namespace isthmus::inter

// Federation: whole gateways, many in one thread, on simulated wires, clocks, disks and workers,
// fed by synthetic ranks, under faults drawn from one seed. After every event the invariants of the
// protocol are checked (PROTOCOL.md, "What must always hold"); at the end the state is compared
// with an independent model in f64. The same seed gives the same run.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "inter/sim/fault.h"
#include "inter/sim/history.h"
#include "inter/sim/scenario.h"

namespace isthmus::inter::sim {

struct Outcome {
  bool finished = false;
  std::vector<std::string> violations;  // empty: all is well
  std::vector<Fault> faults;            // all that the seed gives, also those that were left out
  std::vector<std::uint32_t> happened;  // places of those whose time came before the end, ascending
  std::map<std::string, std::uint64_t> counters;  // of faults: those that hit something
  std::uint64_t steps = 0;
  double simulated_seconds = 0;
  std::uint64_t events = 0;
  std::string log_hash;  // of all event logs: equal for equal seeds
  History history;       // when asked for
};

// What is left of the run that a seed gives: to find out what it takes to fail.
struct PartOfRun {
  std::optional<std::vector<std::uint32_t>> faults;  // places in Outcome::faults, ascending
  std::optional<std::uint32_t> sites;  // the first ones; faults of others are left out
  std::optional<std::uint64_t> outer_steps;
  bool operator==(const PartOfRun&) const = default;
};

// All faults of this run, in the order of time.
std::vector<Fault> faults_of(const Scenario& scenario, std::uint64_t seed);

Outcome run_federation(const Scenario& scenario, std::uint64_t seed, bool keep_history = false,
                       const PartOfRun& part = {});

}  // namespace isthmus::inter::sim

// Federation: whole gateways, many in one thread, on simulated wires, clocks, disks and workers,
// fed by synthetic ranks, under faults drawn from one seed. After every event the invariants of the
// protocol are checked (PROTOCOL.md, "What must always hold"); at the end the state is compared
// with an independent model in f64. The same seed gives the same run.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "compress/codec.h"
#include "inter/link.h"
#include "inter/sim/simulated_network.h"
#include "inter/sync_options.h"

namespace isthmus::inter::sim {

// What a run looks like, before the seed decides the details. Rates are per site and simulated
// minute.
struct Scenario {
  std::string name = "calm";
  std::uint32_t sites = 3;
  std::uint32_t voters = 7;  // of them, the first ones
  std::uint64_t outer_steps = 6;
  OuterRule outer;
  compress::CodecId codec = compress::CodecId::bf16;
  std::uint32_t min_sites = 1;
  std::uint32_t absent_steps = 2;
  NetworkFaults network;
  double partitions = 0;  // a pair cut for up to half a minute
  double one_way = 0.3;   // share of them that cut one direction only
  double broken_connections = 0;
  double crashes = 0;        // at a random moment, or at a named point of the step
  double disk_full = 0;      // a quarter of a minute in which half of the writes fail
  double votes_lost = 0;     // with a crash: probability that the vote file is gone
  double slow_sites = 0;     // share of sites whose ranks take ten times as long
  double absent_start = 0;   // share of sites that come late, after the run has begun
  double memory_errors = 0;  // chance that a site computes a step wrongly; half, once more
  std::uint32_t memory_errors_max = 3;  // of one step at one site
  bool roster_changes = false;          // the first voter loses its vote, every other site gets one
  bool majority_lost = false;           // for good, and the operator says where to go on
  bool one_leaves_for_good = false;     // the last site, when a third of the run is done
  bool blind_pair = false;              // two sites never see each other: others pass on
  Nanoseconds compute = 3 * kSecond;    // of the inner steps, ± 30 %
  Nanoseconds trouble_ends = 90 * kSecond;  // then all faults heal, and the run must finish
  Nanoseconds limit = 900 * kSecond;
  PlantedBug bug = PlantedBug::none;
};

// The scenarios that tests run by name.
std::vector<Scenario> standard_scenarios();

struct Outcome {
  bool finished = false;
  std::vector<std::string> violations;  // empty: all is well
  std::map<std::string, std::uint64_t> counters;
  std::uint64_t steps = 0;
  double simulated_seconds = 0;
  std::uint64_t events = 0;
  std::string log_hash;          // of all event logs: equal for equal seeds
  std::vector<std::string> log;  // when asked for
};

Outcome run_federation(const Scenario& scenario, std::uint64_t seed, bool keep_log = false);

}  // namespace isthmus::inter::sim

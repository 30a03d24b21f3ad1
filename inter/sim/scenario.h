// Scenario: what a simulated run looks like, before the seed decides the details. Read from a file
// by launcher/scenario_file.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "compress/codec.h"
#include "inter/link.h"
#include "inter/sim/simulated_network.h"
#include "inter/sync_options.h"

namespace isthmus::inter::sim {

// Rates are per site and simulated
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

}  // namespace isthmus::inter::sim

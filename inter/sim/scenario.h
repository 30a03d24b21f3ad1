// Scenario: what a simulated run looks like, before the seed decides the details. Read from a file
// by launcher/scenario_file.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "compress/codec.h"
#include "inter/link.h"
#include "inter/sim/simulated_disk.h"
#include "inter/sim/simulated_network.h"
#include "inter/sync_options.h"

namespace isthmus::inter::sim {

// Where and how sites that are killed together die: between events, or each at the same named point
// of one step. One for all outages of a run, or drawn for each.
enum class OutagePoint : std::uint8_t {
  drawn,
  any_moment,
  before_close,
  feedback_written,
  between_vote_and_accept,
  saving,
  merging
};
// How they come back: all within seconds; the last one a quarter of a minute after the others; the
// last one never (once in a run, and no more than leaves a majority).
enum class OutageReturn : std::uint8_t { drawn, soon, one_late, one_never };

// Rates are per site and simulated minute.
struct Scenario {
  std::string name = "calm";
  std::string about;  // for people
  std::uint32_t sites = 3;
  std::uint32_t voters = 7;  // of them, the first ones
  std::uint64_t outer_steps = 6;
  OuterRule outer;
  compress::CodecId codec = compress::CodecId::int8;
  std::uint32_t elements = 2000;    // of the model's largest tensor, about
  std::uint32_t window_chunks = 0;  // of credit, for each peer; 0: as links have it
  std::uint32_t min_sites = 1;
  std::uint32_t absent_steps = 2;
  NetworkFaults network;
  double delay_spread = 0;     // each path's own delay: up to this share longer or shorter
  double slow_lines = 0;       // share of sites whose access link has a tenth of the rate
  bool rate_limited = false;   // gateways are told nine tenths of their line's rate upwards
  double few_connections = 0;  // share of sites that take at most four bulk connections of a peer
  DiskSpeed disk;
  double partitions = 0;  // a pair cut for up to half a minute
  double one_way = 0.3;   // share of them that cut one direction only
  double broken_connections = 0;
  double crashes = 0;              // at a random moment, or at a named point of the step
  double disk_full = 0;            // a quarter of a minute in which half of the writes fail
  double no_descriptors = 0;       // up to a quarter of a minute without: no files, no connections
  double killed_again = 0;         // at the same named point, when it has come back: probability
  double outages = 0;              // of the federation, a minute: several sites die together
  std::uint32_t outage_sites = 0;  // the first ones; 0: all
  OutagePoint outage_point = OutagePoint::drawn;
  OutageReturn outage_return = OutageReturn::drawn;
  double votes_lost = 0;     // with a crash: probability that the vote file is gone
  double wipes = 0;          // a crash after which the disk is empty
  double wiped_again = 0;    // probability, soon after a record gave a wiped site its vote back
  double slow_sites = 0;     // share of sites whose ranks take ten times as long
  double pauses = 0;         // all of a site stands still for up to 45 s, as after SIGSTOP
  Nanoseconds gone_for = 0;  // crashes and pauses last so long at least
  double clock_jumps = 0;    // of the calendar, by up to an hour either way
  Nanoseconds roster_expires = 1'000'000 * kSecond;  // after the beginning
  double clock_drift = 0;    // of each site's clock: at most this share, either way
  double slow_disks = 0;     // a disk takes 10 to 100 times as long, for up to half a minute
  double slow_access = 0;    // an access link has a 100th of its rate, for up to half a minute
  double bad_network = 0;    // of the federation, a minute: up to half of all messages are lost
  double leaves = 0;         // a gateway is asked to end, and returns within a minute
  double absent_start = 0;   // share of sites that come late, after the run has begun
  double memory_errors = 0;  // chance that a site computes a step wrongly; half, once more
  std::uint32_t memory_errors_max = 3;  // of one step at one site
  bool roster_changes = false;          // the first voter loses its vote, every other site gets one
  bool roster_drops = false;            // the newer roster has the first voter as a former site
  // For good, or (one seed of two) their disks alone; and the operator says where to go on.
  bool majority_lost = false;
  bool one_leaves_for_good = false;  // the last site, when a third of the run is done
  bool blind_pair = false;           // two sites never see each other: others pass on
  bool narrow_site = false;          // the last site sees nobody but the last voter beside it
  bool narrow_vote_lost = false;     // its vote file is lost once, if it is a voter
  bool other_settings = false;  // all are started with other settings once, which must be refused
  // The ranks of the last site die or hang when a third of the run is done, for this long.
  // 0: never. Others must neither wait for them at each step nor change the view again and again.
  Nanoseconds dead_ranks = 0;
  // The last site sees nobody for this long, from when a third of the run is done; 0: never. Once
  // it has a session again a record must take it in, or name it, within so many steps.
  Nanoseconds away = 0;
  std::uint64_t back_within = 0;
  Nanoseconds compute = 3 * kSecond;  // of the inner steps, ± 30 %
  // A fault of any kind that may come at any time, in this mean time, somewhere. 0: none. With it
  // nothing is checked of how long single steps take.
  Nanoseconds any_fault_every = 0;
  Nanoseconds trouble_ends = 90 * kSecond;  // then all faults heal, and the run must finish
  Nanoseconds limit = 900 * kSecond;
  PlantedBug bug = PlantedBug::none;
};

// Of how many of its first sites at least there is a run that can end as the whole one must: each
// fault that it may have leaves enough of them.
std::uint32_t least_sites(const Scenario& scenario);

// The scenarios that tests run by name.
std::vector<Scenario> standard_scenarios();

}  // namespace isthmus::inter::sim

// Fault: one thing that is done to a simulated federation, and when. A run's faults are a list that
// its seed gives (plan_faults), so that a part of the list can be run again, and the shortest part
// that still breaks an invariant can be found (shrink.h). What chance does to single messages and
// writes all the time is in NetworkFaults and DiskFaults.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "inter/sim/scenario.h"

namespace isthmus::inter::sim {

enum class FaultKind : std::uint8_t {
  crash,              // at any moment, or at a named point of a step
  wipe,               // a crash after which the disk is empty
  outage,             // several sites crash together
  leave,              // a gateway is asked to end, and returns after a while or never
  disk_full,          // half of the writes fail
  no_descriptors,     // no file can be opened, and no connection taken
  slow_disk,          // each operation takes `factor` times as long
  partition,          // a pair is cut
  broken_connection,  // of a pair
  slow_access,        // a site's access link has a `factor`th of its rate
  bad_network,        // more messages are lost, doubled and reordered: `factor` of them
  slow_ranks,         // compute `factor` times as long
  dead_ranks,         // die or hang
  pause,              // all of a site stands still, as after SIGSTOP
  clock_jump,         // of the calendar, by `length`
  memory_error,       // a step is computed wrongly
  late_start,         // of a site, which comes when the run has begun
  lost_vote,          // a crash after which the vote file is gone
  newer_roster,       // changes the voters
  lost_majority,      // for good, and the operator says where to go on
  other_settings      // all sites are started with one, in vain
};

// Of faults that come when a third of the run is done.
inline constexpr Nanoseconds kAtAThird = -1;
inline constexpr Nanoseconds kForGood = std::numeric_limits<Nanoseconds>::max();

struct Fault {
  FaultKind kind = FaultKind::crash;
  Nanoseconds when = 0;
  Nanoseconds length = 0;   // until it heals
  std::uint32_t site = 0;   // its place, from 0
  std::uint32_t other = 0;  // of a pair
  std::uint32_t count = 0;  // outage: sites, from `site` on; others: how often
  std::uint64_t step = 0;   // memory_error
  std::string_view point;   // where a site crashes; "": at once
  OutageReturn how = OutageReturn::soon;
  double factor = 1;
  bool vote_lost = false;     // with a crash
  bool wiped_again = false;   // when it has its vote back
  bool one_way = false;       // a partition from `site` to `other`
  bool drops_a_site = false;  // newer_roster: the first site is one no longer
  bool hang = false;          // dead_ranks: they keep what they have
  bool disks_alone = false;   // lost_majority: the machines come back without them
};

// In the order of time; a function of its arguments alone.
std::vector<Fault> plan_faults(const Scenario& scenario, const Random& random);

// "s2 crashes at the point "before_close", 2 times"; without the time.
std::string text_of(const Fault& fault);
// "at 12.3 s"; "when a third of the run is done".
std::string time_text_of(const Fault& fault);

}  // namespace isthmus::inter::sim

// LinkTestReport: what a link test found out, what it means for this machine's and the peer's
// settings, and all of it as JSON.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "inter/link_test_frames.h"

namespace isthmus::inter {

struct LinkTestReport {
  std::string here, there;  // names of the sites
  LinkTestSide side_here, side_there;
  std::vector<Nanoseconds> round_trips;  // of an idle line; not empty
  struct Direction {
    LinkTestSent sent;
    LinkTestGot got;
    bool beside_exchange = false;  // rates, losses and shares are of its bytes too

    // While warm: as the sender's kernel counted it, or, where it tells nothing, as it could be
    // read.
    double bits_per_second() const;  // 0: too little came to tell
    Nanoseconds warm() const { return sent.warm > 0 ? sent.warm : got.warm; }
    // What this end knows of why; it measures one half of each direction.
    Unmeasured unmeasured() const;
    // Of a line with this round trip: what was warm for a few of them only is not measured. Then a
    // window that still opens bounds the rate, not the line.
    void forget_if_short(Nanoseconds round_trip);
  };
  Direction to_peer, from_peer;
  LinkTestPlan plan;

  Nanoseconds round_trip_min() const;
  Nanoseconds round_trip_median() const;
  // Bytes that are on their way at this direction's capacity.
  double bandwidth_delay(const Direction& direction) const;
  // Sentences; each with what to do, and where.
  std::vector<std::string> advice() const;
  // One object; its names are those that `isthmus link test --help` explains.
  std::string to_json() const;
};

// The bytes that had arrived at some time; ascending.
struct LinkTestSample {
  Nanoseconds when = 0;
  std::uint64_t bytes = 0;
};
// Of the time from the first byte to the last, the last three fifths: before that congestion
// control finds its rate. None where bytes came in them too seldom (then most had come before, and
// what is left is a scrap), or twice as fast in their second half as in their first (then the line
// was not full yet).
struct WarmPhase {
  std::size_t first = 0, last = 0;  // samples
};
// Else why there is none.
std::variant<WarmPhase, Unmeasured> warm_phase(std::span<const LinkTestSample> samples);
LinkTestGot warm_rate(std::span<const LinkTestSample> samples);

}  // namespace isthmus::inter

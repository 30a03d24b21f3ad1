// LinkTestReport: what a link test found out, what it means for this machine's and the peer's
// settings, and all of it as JSON.
#pragma once

#include <span>
#include <string>
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
  };
  Direction to_peer, from_peer;

  Nanoseconds round_trip_min() const;
  Nanoseconds round_trip_median() const;
  // Bytes that are on their way at this direction's capacity.
  double bandwidth_delay(const Direction& direction) const;
  // Sentences; each with what to do, and where.
  std::vector<std::string> advice() const;
  // One object; its names are those that `isthmus link test --help` explains.
  std::string to_json() const;
};

// The bytes that the receiver had at some time; ascending.
struct LinkTestSample {
  Nanoseconds when = 0;
  std::uint64_t bytes = 0;
};
// The rate of the last three fifths of the time from `first` to the last byte: before that
// congestion control finds its rate.
LinkTestGot warm_rate(std::span<const LinkTestSample> samples);

}  // namespace isthmus::inter

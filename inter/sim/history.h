// History: what a simulated run was like, for who asks whether one promise was kept in it: which
// faults had an effect, and when; what gateways logged; what was decided. Times are the
// simulation's.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "inter/record.h"
#include "inter/sim/fault.h"

namespace isthmus::inter::sim {

struct History {
  // Until it healed: a crash until the site was started again; a broken connection until both ends
  // have had something, on both lanes, of what took its place.
  struct Struck {
    FaultKind kind = FaultKind::crash;
    std::uint32_t site = 0, other = 0;  // places, from 0
    bool one_way = false;
    Nanoseconds from = 0, until = kForGood;  // what outlasts the run never ends
    std::uint64_t saved = 0;                 // crash: the step that the site had said it has saved
    std::uint64_t torn = 0;                  // crash: files
  };
  struct Logged {
    Nanoseconds when = 0;
    std::string site, event, peer;
    std::int64_t outer_step = -1;
    std::string line;  // JSON
  };
  struct Decided {
    Nanoseconds when = 0;  // as the first site knew it
    Record record;
  };
  std::vector<Struck> struck;
  std::vector<Logged> log;
  std::map<std::uint64_t, Decided> decided;  // by step
};

}  // namespace isthmus::inter::sim

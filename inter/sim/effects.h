// Effects: which of the faults of a simulated run hit something. A disk that was slow while nobody
// used it, or a connection that broke where none stood, is no fault that was survived: a fault
// counts if what it does was done while it lasted.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "inter/sim/history.h"

namespace isthmus::inter::sim {

class Effects {
 public:
  using Number = std::uint64_t;  // of a fault that lasts; 0: of none

  // `counters` outlives it.
  explicit Effects(std::map<std::string, std::uint64_t>& counters) : counters_(counters) {}

  // `hit`: asked when it ends, or the run does; without it the fault hit something for certain.
  // `counter`: of those that did; "": counted elsewhere.
  Number begin(const History::Struck& struck, std::string counter, std::function<bool()> hit = {});
  void end(Number fault, Nanoseconds now);
  // The run is over: the history of those that hit something, in the order of time.
  std::vector<History::Struck> finish();

 private:
  struct Lasting {
    History::Struck struck;
    std::string counter;
    std::function<bool()> hit;
  };
  void settle(const Lasting& fault);

  std::map<std::string, std::uint64_t>& counters_;
  std::map<Number, Lasting> lasting_;
  Number last_ = 0;
  std::vector<History::Struck> struck_;
};

}  // namespace isthmus::inter::sim

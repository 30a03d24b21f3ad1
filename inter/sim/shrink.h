// Which of a failing run's faults it takes to fail: the shortest list of them, no one of which can
// be left out, then fewer outer steps and fewer sites (Zeller and Hildebrandt, "Simplifying and
// isolating failure-inducing input", 2002).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "inter/sim/federation.h"

namespace isthmus::inter::sim {

// The invariant that a violation is of: what it says, without its numbers and names.
std::string invariant_of(std::string_view violation);

// The first violation of a run of which only this part happens; none: it holds.
using RunPart = std::function<std::optional<std::string>(const PartOfRun&)>;

struct Shrunk {
  PartOfRun part;         // with its faults
  std::string violation;  // of the run of that part
  std::uint64_t runs = 0;
};
// `whole` has failed with `violation`; `faults`, `sites` and `outer_steps` are its numbers of each,
// and with fewer than `least_sites` it may fail for want of them. `enough` is asked before each
// run: true ends the search with what it has.
Shrunk shrink(
    const RunPart& run, const std::string& violation, std::uint32_t faults, std::uint32_t sites,
    std::uint32_t least_sites, std::uint64_t outer_steps,
    const std::function<bool()>& enough = [] { return false; });

}  // namespace isthmus::inter::sim

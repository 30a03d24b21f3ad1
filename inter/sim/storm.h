// The storm: each seed draws a federation of its own (sites, voters, codec, outer rule, what each
// sees, network, disks and clocks) and a mixture of all faults, which come down to one for each
// outer step.
#pragma once

#include <cstdint>

#include "inter/sim/scenario.h"

namespace isthmus::inter::sim {

Scenario storm_scenario(std::uint64_t seed);

}  // namespace isthmus::inter::sim

// PlantedBug: faults that the simulator plants to prove that it would find them
// (tests/sim/planted_bugs_test.cc). None in a real gateway.
#pragma once

#include <cstdint>

namespace isthmus::inter {

enum class PlantedBug : std::uint8_t {
  none,
  lying_disk,             // an fsync that does nothing
  acknowledge_early,      // a chunk is acknowledged before it is checked
  skip_gap,               // after a reconnect everything below the highest chunk counts as received
  announce_before_saved,  // Saved is sent before the state is on disk
  two_contributions,      // a restart contributes again, with other values
  drop_feedback,          // a contribution that no record names is forgotten
};

}  // namespace isthmus::inter

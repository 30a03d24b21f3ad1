// KillPoint: for tests of crashes. The environment variable ISTHMUS_KILL_AT names one point of one
// outer step, "gateway:saving:2" or "rank:saving:2"; when the gateway gets there, it kills itself,
// or its ranks, with SIGKILL. Once in a run: a file in run_dir remembers it.
//
// Points: before_close, between_vote_and_accept, saving, merging, state_transfer, final
// (inter/gateway.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"

namespace isthmus::launcher {

// What a gateway calls at each point. Does nothing when the variable is not set. `ranks` gives the
// processes of the ranks. Errors: invalid_argument (the variable is no such text).
Result<std::function<void(const char* point, std::uint64_t step)>> make_kill_point(
    const std::string& run_dir, std::function<std::vector<int>()> ranks);

}  // namespace isthmus::launcher

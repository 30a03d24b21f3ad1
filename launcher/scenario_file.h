// A scenario of the simulated federation (inter/sim/federation.h), by the name of a standard one or
// from a TOML file that changes what it names:
//
//   from = "storm"          # a standard scenario to start from; left out: "calm"
//   sites = 7
//   loss = 0.05             # of one message
//   compute = "2 s"         # of the inner steps between two outer steps
//
// The keys are the fields of Scenario and of its network faults; sizes and times with their unit.
// configs/scenarios/storm.toml names all of them.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "inter/sim/federation.h"

namespace isthmus::launcher {

// Errors: invalid_argument, with the text of all faults or the names there are.
Result<inter::sim::Scenario> read_scenario(const std::string& name_or_path);

// The same from a text. `path` is for the faults.
Result<inter::sim::Scenario> parse_scenario(const std::string& path, const std::string& source);

// A line for each standard scenario: name, what happens in it.
std::string standard_scenarios_text();

// A line for each key: name, what it may hold, what it means.
std::string scenario_keys_text();

}  // namespace isthmus::launcher

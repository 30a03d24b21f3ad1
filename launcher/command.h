// The commands of `isthmus`. Each adds itself to the command line, in a file of its own
// (command_check.cc, …), and leaves behind what is to be done when it is chosen. Nothing is done
// while the command line is read.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace CLI {
class App;
}

namespace isthmus::launcher {

// What a process of isthmus ends with; explained in docs/configuration.md.
enum class ExitCode : int {
  done = 0,
  failed = 1,       // the message says what to do
  bad_usage = 2,    // command line, site file or roster: starting again cannot help
  stopped = 3,      // on request, with everything saved
  unavailable = 4,  // the gateway or another site is not there; starting again may help
  broken = 5,       // a device or a collective; start again from the gateway's state
};

using Action = std::function<ExitCode()>;

void add_init(CLI::App& program, Action& action);
void add_check(CLI::App& program, Action& action);
void add_keys(CLI::App& program, Action& action);
void add_roster(CLI::App& program, Action& action);

// Site files and the keys that --set replaces in them.
struct SiteArguments {
  std::vector<std::string> paths;
  std::vector<std::string> overrides;
};
enum class HowManySites { one, some };
void add_site_arguments(CLI::App& command, SiteArguments& arguments, HowManySites how_many);

// "isthmus: SENTENCE" on stderr; the exit code that fits the error.
ExitCode fail(const Error& error);

}  // namespace isthmus::launcher

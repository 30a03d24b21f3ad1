// The commands of `isthmus`. Each adds itself to the command line, in a file of its own
// (command_check.cc, …), and leaves behind what is to be done when it is chosen. Nothing is done
// while the command line is read.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "launcher/exit_code.h"

namespace CLI {
class App;
}

namespace isthmus::launcher {

using Action = std::function<ExitCode()>;

// One for each command.
void add_init(CLI::App& program, Action& action);
void add_check(CLI::App& program, Action& action);
void add_launch(CLI::App& program, Action& action);
void add_status(CLI::App& program, Action& action);
void add_top(CLI::App& program, Action& action);
void add_link(CLI::App& program, Action& action);
void add_report(CLI::App& program, Action& action);
void add_eval(CLI::App& program, Action& action);
void add_export(CLI::App& program, Action& action);
void add_generate(CLI::App& program, Action& action);
void add_data(CLI::App& program, Action& action);
void add_keys(CLI::App& program, Action& action);
void add_roster(CLI::App& program, Action& action);
void add_gateway(CLI::App& program, Action& action);
void add_train(CLI::App& program, Action& action);
void add_simulate(CLI::App& program, Action& action);

// All of them, in the order of --help.
void add_commands(CLI::App& program, Action& action);

// Site files and the keys that --set replaces in them.
struct SiteArguments {
  std::vector<std::string> paths;
  std::vector<std::string> overrides;
};
enum class HowManySites { one, some, any_in_folder };  // the last: none named, all of this folder
void add_site_arguments(CLI::App& command, SiteArguments& arguments, HowManySites how_many);
void add_set(CLI::App& command, SiteArguments& arguments, std::string_view example);  // only --set

// For a command that reads or makes a secret key, before anything else: security::harden_process,
// with what the system would not do on stderr.
void guard_secrets();

// For CLI::Option::check, because CLI11 takes -1 for the largest of all numbers: "" for a whole
// number of 0 or more, else what is wrong.
std::string whole_number(const std::string& text);

// "isthmus: SENTENCE" on stderr; the exit code that fits the error.
ExitCode fail(const Error& error);

}  // namespace isthmus::launcher

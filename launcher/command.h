// The commands of `isthmus`. Each adds itself to the command line, in a file of its own
// (command_check.cc, …), and says what is to be done when it is chosen.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "launcher/argument_parser.h"
#include "launcher/exit_code.h"

namespace isthmus::launcher {

// One for each command.
void add_init(Command program);
void add_check(Command program);
void add_plan(Command program);
void add_launch(Command program);
void add_status(Command program);
void add_top(Command program);
void add_link(Command program);
void add_report(Command program);
void add_eval(Command program);
void add_export(Command program);
void add_generate(Command program);
void add_data(Command program);
void add_keys(Command program);
void add_roster(Command program);
void add_gateway(Command program);
void add_train(Command program);
void add_simulate(Command program);

// All of them, in the order of --help.
void add_commands(Command program);

// Site files and the keys that --set replaces in them.
struct SiteArguments {
  std::vector<std::string> paths;
  std::vector<std::string> overrides;
};
enum class HowManySites { one, some, any_in_folder };  // the last: none named, all of this folder
// Adds FILE, which it returns, and --set.
Option add_site_arguments(Command command, SiteArguments& arguments, HowManySites how_many);
// Which of a site's models: none of these, its newest checkpoint.
struct ModelArguments {
  std::string checkpoint;
  bool best = false;
};
// Adds --checkpoint and --best, which it returns.
std::array<Option, 2> add_model_arguments(Command command, ModelArguments& arguments);
void add_set(Command command, SiteArguments& arguments, std::string_view example);  // only --set

// For a command that reads or makes a secret key, before anything else: security::harden_process,
// with what the system would not do on stderr.
void guard_secrets();

// For programs, in the place of what was asked for: {"site": "alpha", "error": {code, message}},
// the first as `of` and `name` say.
std::string error_json(const std::string& of, const std::string& name, const Error& error);

// "isthmus: SENTENCE" on stderr; the exit code that fits the error.
ExitCode fail(const Error& error);

}  // namespace isthmus::launcher

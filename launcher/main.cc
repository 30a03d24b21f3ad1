// isthmus: one program, one command per task.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "launcher/command.h"
#include "launcher/nearest_name.h"

namespace isthmus::launcher {
namespace {

constexpr std::string_view kHelpTail =
    "A first run, of two sites on this machine: tools/quickstart. All keys of a site file:\n"
    "docs/configuration.md. Exit codes: 0 done, 1 failed, 2 wrong command line or site file,\n"
    "3 stopped on request, 4 gateway or site not there, 5 device or collective broke,\n"
    "6 a file missing or damaged, a port taken, or a limit: starting again cannot help.";

// A wrong first word is most often a typo.
bool refuse_unknown_command(const CLI::App& program, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return false;
  std::vector<std::string> names;
  for (const auto* command : program.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  std::vector<std::string_view> views(names.begin(), names.end());
  for (const auto name : views)
    if (name == argv[1]) return false;
  const auto near = nearest_name(argv[1], views);
  fmt::print(
      stderr, "isthmus: there is no command \"{}\"; {}\n", argv[1],
      near ? fmt::format("did you mean \"{}\"?", *near) : std::string("isthmus --help lists them"));
  return true;
}

int run(int argc, char** argv) {
  CLI::App program("isthmus trains one model on clusters that only a thin link joins.", "isthmus");
  program.set_version_flag("--version", "isthmus " ISTHMUS_VERSION, "Print the version");
  program.set_help_flag("-h,--help", "Print this help");
  program.require_subcommand(1);
  program.footer(std::string(kHelpTail));
  Action action;
  add_commands(program, action);
  if (refuse_unknown_command(program, argc, argv)) return static_cast<int>(ExitCode::bad_usage);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return program.exit(error);  // --help, --version
    fmt::print(stderr, "isthmus: {}\n", error.what());
    const auto chosen = program.get_subcommands();
    fmt::print(stderr, "isthmus {}--help says how\n",
               chosen.empty() ? "" : chosen.front()->get_name() + " ");
    return static_cast<int>(ExitCode::bad_usage);
  }
  return static_cast<int>(action());
}

}  // namespace
}  // namespace isthmus::launcher

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of write, not the end
  try {
    return isthmus::launcher::run(argc, argv);
  } catch (const std::exception& error) {
    std::fputs(fmt::format("isthmus: {}\n", error.what()).c_str(), stderr);
    return static_cast<int>(isthmus::launcher::ExitCode::failed);
  }
}

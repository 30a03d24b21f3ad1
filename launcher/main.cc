// isthmus: one program, one command per task.

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "launcher/command.h"
#include "launcher/help_text.h"
#include "launcher/nearest_name.h"

namespace isthmus::launcher {
namespace {

constexpr std::string_view kHelpTail =
    "A first run, of two sites on this machine: tools/quickstart. All keys of a site\n"
    "file: docs/configuration.md. Exit codes: 0 done, 1 failed, 2 wrong command line\n"
    "or site file, 3 stopped on request, 4 gateway or site not there, or another\n"
    "process has the run, 5 device or collective broke, 6 a file missing or damaged,\n"
    "a port taken, or a limit: starting again cannot help, 7 no room on the disk.";

// A wrong word where a command belongs is most often a typo.
bool refuse_unknown_command(const CLI::App& program, int argc, char** argv) {
  const CLI::App* app = &program;
  std::string called = "isthmus";
  for (int i = 1; i < argc; ++i) {
    const auto commands = app->get_subcommands([](const CLI::App*) { return true; });
    if (commands.empty()) return false;
    const std::string word = argv[i];
    if (word == "-h" || word == "--help" || word == "--version") return false;
    std::vector<std::string> names;
    const CLI::App* chosen = nullptr;
    for (const auto* command : commands) {
      names.push_back(command->get_name());
      if (command->get_name() == word) chosen = command;
    }
    if (chosen == nullptr) {
      const std::vector<std::string_view> views(names.begin(), names.end());
      const auto near = nearest_name(word, views);
      fmt::print(stderr, "{}: there is no {} \"{}\"; {}\n", called,
                 word.starts_with('-') ? "option" : "command", word,
                 near ? fmt::format("did you mean \"{}\"?", *near)
                      : fmt::format("{} --help lists what there is", called));
      return true;
    }
    app = chosen;
    called += " " + word;
  }
  return false;
}

// "isthmus roster recover ": as far as commands were recognised.
std::string called_so_far(const CLI::App& program) {
  std::string called = "isthmus ";
  auto chosen = program.get_subcommands();
  while (!chosen.empty()) {
    called += chosen.front()->get_name() + " ";
    chosen = chosen.front()->get_subcommands();
  }
  return called;
}

// Not a pipe whose reader has seen enough, nor a closed descriptor.
bool somebody_reads() {
  pollfd output{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&output, 1, 0) >= 0 && (output.revents & (POLLERR | POLLHUP | POLLNVAL)) == 0;
}

// What was printed may still be on its way.
ExitCode after_output(ExitCode code) {
  std::cout.flush();
  if ((std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout) || !somebody_reads())
    return code;
  std::fputs("isthmus: cannot write the output: is the disk full?\n", stderr);
  return code == ExitCode::done ? ExitCode::failed : code;
}

int run(int argc, char** argv) {
  CLI::App program("isthmus trains one model on clusters that only a thin link joins.", "isthmus");
  program.formatter(make_help_text());
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
    if (error.get_exit_code() == 0) {  // --help, --version
      program.exit(error);
      return static_cast<int>(after_output(ExitCode::done));
    }
    fmt::print(stderr, "isthmus: {}\n", error.what());
    fmt::print(stderr, "{}--help says how\n", called_so_far(program));
    return static_cast<int>(ExitCode::bad_usage);
  }
  return static_cast<int>(after_output(action()));
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

// isthmus: one program, one command per task.

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <system_error>
#include <vector>

#include "launcher/argument_parser.h"
#include "launcher/command.h"

namespace isthmus::launcher {
namespace {

constexpr auto kHelpTail =
    "A first run, of two sites on this machine: tools/quickstart. All keys of a site\n"
    "file: docs/configuration.md. Exit codes: 0 done, 1 failed, 2 wrong command line\n"
    "or site file, 3 stopped on request, 4 gateway or site not there, or another\n"
    "process has the run, 5 device or collective broke, 6 a file missing or damaged,\n"
    "a port taken, or a limit: starting again cannot help, 7 no room on the disk.";

// Not a pipe whose reader has seen enough, nor a closed descriptor.
bool somebody_reads() {
  pollfd output{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&output, 1, 0) >= 0 && (output.revents & (POLLERR | POLLHUP | POLLNVAL)) == 0;
}

// What was printed may still be on its way.
ExitCode after_output(ExitCode code) {
  if ((std::fflush(stdout) == 0 && std::ferror(stdout) == 0) || !somebody_reads()) return code;
  std::fputs("isthmus: cannot write the output: is the disk full?\n", stderr);
  return code == ExitCode::done ? ExitCode::failed : code;
}

ExitCode run(const std::vector<std::string>& words) {
  ArgumentParser parser("isthmus",
                        "isthmus trains one model on clusters that only a thin link joins.",
                        ISTHMUS_VERSION);
  parser.program().footer(kHelpTail);
  add_commands(parser.program());
  const auto action = parser.parse(words);
  if (!action) {
    fmt::print(stderr, "{}", action.error().message);
    return ExitCode::bad_usage;
  }
  return after_output((*action)());
}

}  // namespace
}  // namespace isthmus::launcher

int main(int argc, char** argv) {
  using namespace isthmus::launcher;
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of write, not the end
  try {
    return static_cast<int>(run({argv + 1, argv + argc}));
  } catch (const std::exception& error) {
    // Of fmt::print, say, where output ends before it is flushed.
    const auto* of_system = dynamic_cast<const std::system_error*>(&error);
    const bool in_a_pipe = of_system != nullptr && of_system->code() == std::errc::broken_pipe;
    if (!in_a_pipe || somebody_reads())
      std::fputs(fmt::format("isthmus: {}\n", error.what()).c_str(), stderr);
    return static_cast<int>(ExitCode::failed);
  }
}

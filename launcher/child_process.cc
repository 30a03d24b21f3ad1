#include "launcher/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <deque>
#include <fstream>
#include <sstream>
#include <string_view>

#include "base/disk.h"

extern char** environ;

namespace isthmus::launcher {
namespace {

// Between fork and exec only what signal-safety(7) allows.
[[noreturn]] void become(char* const* arguments, char* const* environment, int log, int parent,
                         int report) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(1);  // it ended before the line above
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGCHLD})
    ::signal(number, SIG_DFL);
  if (log >= 0) {
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null >= 0) ::dup2(null, STDIN_FILENO);
    ::dup2(log, STDOUT_FILENO);
    ::dup2(log, STDERR_FILENO);
  }
  ::execvpe(arguments[0], arguments, environment);
  const int why = errno;
  [[maybe_unused]] const auto written = ::write(report, &why, sizeof why);
  ::_exit(127);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (auto& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

}  // namespace

Result<int> start_child(const ChildCommand& command) {
  auto arguments = command.arguments;
  auto environment = command.environment;
  const auto names_same = [](std::string_view a, std::string_view b) {
    return a.substr(0, a.find('=')) == b.substr(0, b.find('='));
  };
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (std::none_of(command.environment.begin(), command.environment.end(),
                     [&](const std::string& ours) { return names_same(ours, *entry); }))
      environment.emplace_back(*entry);
  const auto argument_pointers = pointers(arguments);
  const auto environment_pointers = pointers(environment);

  int log = -1;
  if (!command.log_path.empty()) {
    ISTHMUS_CHECK(make_system_disk()->make_folders(folder_of(command.log_path)));
    log = ::open(command.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log < 0)
      return error_of_errno(errno, fmt::format("cannot open the log {}", command.log_path));
  }
  // Carries the reason when exec fails; closed by exec when it does not.
  std::array<int, 2> report = {-1, -1};
  if (::pipe2(report.data(), O_CLOEXEC) != 0) {
    if (log >= 0) ::close(log);
    return error_of_errno(errno, "cannot make a pipe");
  }
  const int parent = ::getpid();
  const int pid = ::fork();
  if (pid == 0)
    become(argument_pointers.data(), environment_pointers.data(), log, parent, report[1]);
  const int fork_error = errno;
  ::close(report[1]);
  if (log >= 0) ::close(log);
  int why = 0;
  const bool failed = pid > 0 && ::read(report[0], &why, sizeof why) == sizeof why;
  ::close(report[0]);
  if (pid < 0) return error_of_errno(fork_error, "cannot start a process");
  if (failed) {
    ::waitpid(pid, nullptr, 0);
    return error_of_errno(why, fmt::format("cannot run {}", command.arguments.front()));
  }
  ::setpgid(pid, pid);  // both sides do it, so that it is done whoever comes first
  return pid;
}

void signal_child(int pid, int signal) { ::kill(-pid, signal); }

std::vector<EndedChild> reap_children() {
  std::vector<EndedChild> ended;
  int status = 0;
  for (int pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;)
    ended.push_back({pid, WIFSIGNALED(status) ? ProcessEnd{.signal = WTERMSIG(status)}
                                              : ProcessEnd{.code = WEXITSTATUS(status)}});
  return ended;
}

namespace {

// "12:00:03 alpha …", as EventLog's terminal sink writes it.
bool is_event_sentence(std::string_view line) {
  constexpr std::string_view kShape = "00:00:00 ";
  return line.size() > kShape.size() &&
         std::ranges::equal(kShape, line.substr(0, kShape.size()), [](char shape, char c) {
           return shape == '0' ? c >= '0' && c <= '9' : c == shape;
         });
}

std::deque<std::string> tail_of(const std::string& path, int count, std::uint64_t from,
                                std::streamoff bytes_max) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return {};
  const auto size = static_cast<std::streamoff>(in.tellg());
  in.seekg(std::max(std::min(size, static_cast<std::streamoff>(from)), size - bytes_max));
  std::string text(std::istreambuf_iterator<char>(in), {});
  std::deque<std::string> last;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (is_event_sentence(line)) continue;
    last.push_back(std::move(line));
    if (last.size() > static_cast<std::size_t>(count)) last.pop_front();
  }
  while (!last.empty() && last.back().empty()) last.pop_back();
  return last;
}

}  // namespace

std::string last_lines(const std::string& path, int count, std::uint64_t from) {
  constexpr std::streamoff kTail = 4096;
  return fmt::format("{}", fmt::join(tail_of(path, count, from, kTail), "\n"));
}

std::string last_words(const std::string& path, std::uint64_t from) {
  constexpr int kLines = 200;
  constexpr std::streamoff kTail = 16 << 10;
  constexpr std::string_view kOurs = "isthmus: ", kWarning = "isthmus: warning: ";
  const auto lines = tail_of(path, kLines, from, kTail);
  const auto ours = [&](const std::string& line) {
    return line.starts_with(kOurs) && !line.starts_with(kWarning);
  };
  // The first of several ranks that ended: the others may have missed it.
  if (const auto said = std::ranges::find_if(lines, ours); said != lines.end()) return *said;
  const auto fault = std::ranges::find_if(
      lines, [](const auto& line) { return line.find(": error: ") != line.npos; });
  if (fault != lines.end()) return *fault;
  const auto says = [](const std::string& line) {
    return std::ranges::any_of(line, [](unsigned char c) { return std::isalnum(c) != 0; });
  };
  const auto last = std::find_if(lines.rbegin(), lines.rend(), says);
  return last == lines.rend() ? std::string() : *last;
}

}  // namespace isthmus::launcher

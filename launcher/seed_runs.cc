#include "launcher/seed_runs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace isthmus::launcher {
namespace {

constexpr int kPollMs = 100;

void write_all(int to, std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(to, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // the other end is gone, which its reader finds out
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

// A child that answers each line with a line, until there are no more.
class Child {
 public:
  using Answer = std::function<std::string(const std::string&)>;

  static Result<std::unique_ptr<Child>> start(const Answer& answer) {
    int down[2], up[2];
    if (::pipe2(down, O_CLOEXEC) != 0) return error_of_errno(errno, "cannot make a pipe");
    if (::pipe2(up, O_CLOEXEC) != 0) {
      const auto error = error_of_errno(errno, "cannot make a pipe");
      ::close(down[0]);
      ::close(down[1]);
      return error;
    }
    const auto parent = ::getpid();
    const auto pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);  // it ended before that took effect
      ::close(down[1]);
      ::close(up[0]);
      serve(down[0], up[1], answer);
      ::_exit(0);
    }
    const auto failed = errno;
    ::close(down[0]);
    ::close(up[1]);
    if (pid < 0) {
      ::close(down[1]);
      ::close(up[0]);
      return error_of_errno(failed, "cannot start a process");
    }
    return std::unique_ptr<Child>(new Child(pid, down[1], up[0]));
  }
  ~Child() {
    ::close(to_);
    ::close(from_);
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void ask(const std::string& question) {
    asked_ = clock_->now();
    answer_.clear();
    write_all(to_, question + "\n");
  }
  int from() const { return from_; }
  // Whatever is there to read; the answer once it is whole.
  std::optional<std::string> read() {
    char buffer[4096];
    const auto count = ::read(from_, buffer, sizeof buffer);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) return std::nullopt;
    if (count <= 0) {
      ended_ = how_it_ended();
      return std::nullopt;
    }
    answer_.append(buffer, static_cast<std::size_t>(count));
    if (!answer_.ends_with('\n')) return std::nullopt;
    answer_.pop_back();
    return std::exchange(answer_, {});
  }
  // "": it runs.
  const std::string& ended() const { return ended_; }
  // From outside, since no fault of a program ends it so: by somebody, or by the kernel for memory.
  bool killed() const { return killed_; }
  bool late() const { return clock_->now() - asked_ > kSeedTimeMax; }

 private:
  Child(int pid, int to, int from) : pid_(pid), to_(to), from_(from) {}

  static void serve(int from, int to, const Answer& answer) {
    std::string question;
    for (char c = 0;;) {
      const auto count = ::read(from, &c, 1);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return;
      if (c != '\n') {
        question += c;
        continue;
      }
      write_all(to, answer(std::exchange(question, {})) + "\n");
    }
  }
  std::string how_it_ended() {
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    killed_ = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (WIFSIGNALED(status))
      return fmt::format("the simulator was ended by signal {} ({})", WTERMSIG(status),
                         ::strsignal(WTERMSIG(status)));
    return fmt::format("the simulator ended with exit code {}", WEXITSTATUS(status));
  }

  int pid_;
  const int to_, from_;
  std::unique_ptr<Clock> clock_ = make_system_clock();
  Nanoseconds asked_ = 0;
  std::string answer_, ended_;
  bool killed_ = false;
};

Error killed_from_outside(const std::string& what) {
  return {ErrorCode::unavailable,
          what +
              " was killed (SIGKILL), by somebody or because memory ran out: it says nothing "
              "of the seed, which is run again next time; fewer --cpus need less memory"};
}

const std::string kTooLate =
    fmt::format("the simulator took longer than {:.0f} s", seconds_of(kSeedTimeMax));

}  // namespace

Result<void> run_seeds(const SeedRuns& runs, const std::atomic<bool>& stop) {
  ::signal(SIGPIPE, SIG_IGN);  // a child that is gone is noticed where it is read
  struct Busy {
    std::unique_ptr<Child> child;
    std::uint64_t seed = 0;
  };
  std::vector<Busy> busy;
  const auto answer = [&](const std::string& question) {
    auto line = runs.run(std::stoull(question)).line();
    line.pop_back();
    return line;
  };
  // False: there is no more to do for it.
  const auto give_work = [&](Busy& worker) -> Result<bool> {
    const auto seed = runs.next();
    if (!seed) return false;
    if (!worker.child) {
      ISTHMUS_TRY(worker.child, Child::start(answer));
    }
    worker.seed = *seed;
    worker.child->ask(std::to_string(*seed));
    return true;
  };
  for (unsigned i = 0; i < runs.processes; ++i) {
    Busy worker;
    ISTHMUS_TRY(const bool more, give_work(worker));
    if (!more) break;
    busy.push_back(std::move(worker));
  }
  while (!busy.empty()) {
    if (stop) return Error{ErrorCode::cancelled, "stopped"};
    std::vector<pollfd> ready;
    for (const auto& worker : busy) ready.push_back({worker.child->from(), POLLIN, 0});
    ::poll(ready.data(), ready.size(), kPollMs);
    for (std::size_t i = busy.size(); i-- > 0;) {
      auto& worker = busy[i];
      std::optional<SeedResult> result;
      if (ready[i].revents != 0) {
        if (const auto line = worker.child->read()) result = parse_seed_line(*line);
        if (worker.child->killed())
          return killed_from_outside(fmt::format("the simulator of seed {}", worker.seed));
        if (!worker.child->ended().empty())
          result = SeedResult{.seed = worker.seed, .violation = worker.child->ended()};
      } else if (worker.child->late()) {
        result = SeedResult{.seed = worker.seed, .violation = kTooLate};
      }
      if (!result) continue;
      if (!worker.child->ended().empty() || worker.child->late()) worker.child.reset();
      ISTHMUS_CHECK(runs.done(*result));
      ISTHMUS_TRY(const bool more, give_work(worker));
      if (!more) busy.erase(busy.begin() + static_cast<std::ptrdiff_t>(i));
    }
    runs.tick();
  }
  return {};
}

Result<std::string> run_apart(const std::function<std::string()>& run,
                              const std::atomic<bool>& stop) {
  ISTHMUS_TRY(const auto child, Child::start([&](const std::string&) { return run(); }));
  child->ask("run");
  for (;;) {
    if (stop) return Error{ErrorCode::cancelled, "stopped"};
    if (child->late()) return kTooLate;
    pollfd ready{child->from(), POLLIN, 0};
    if (::poll(&ready, 1, kPollMs) <= 0) continue;
    if (auto said = child->read()) return *said;
    if (child->killed()) return killed_from_outside("the simulator");
    if (!child->ended().empty()) return child->ended();
  }
}

}  // namespace isthmus::launcher

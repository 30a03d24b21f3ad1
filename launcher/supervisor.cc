#include "launcher/supervisor.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/assert.h"

namespace isthmus::launcher {

namespace asio = boost::asio;

class Supervisor::State {
 public:
  State(asio::io_context& io, const Clock& clock, std::vector<SupervisedProcess> processes,
        SupervisorOptions options, std::function<void(const Happening&)> tell,
        std::function<void(ExitCode)> over)
      : clock_(clock),
        options_(std::move(options)),
        tell_(std::move(tell)),
        over_(std::move(over)),
        child_signals_(io, SIGCHLD),
        patience_(io),
        slow_(io) {
    for (auto& process : processes)
      all_.push_back(std::make_unique<Process>(io, std::move(process), options_.restart));
    watch_children();
  }

  ~State() {
    for (const auto& process : all_)
      if (process->pid > 0) signal_child(process->pid, SIGKILL);
  }

  void start() {
    // Gateways first: ranks wait for theirs.
    for (const bool gateways : {true, false})
      for (const auto& process : all_)
        if (process->plan.is_gateway == gateways) launch(*process);
    settle();
  }

  void stop() {
    if (phase_ == Phase::over || same_wish()) return;
    if (phase_ != Phase::running) return kill_all("stopped at once");
    tell_({.text = "stopping: ranks write a checkpoint first; once more ends everything at once"});
    begin_stop(ExitCode::stopped);
    settle();
  }

  bool stopping() const { return phase_ != Phase::running; }

 private:
  enum class Phase { running, stopping_ranks, stopping_gateways, over };

  struct Process {
    Process(asio::io_context& io, SupervisedProcess process, RestartOptions restart)
        : plan(std::move(process)), policy(restart), delay(io) {}

    SupervisedProcess plan;
    RestartPolicy policy;
    asio::steady_timer delay;
    int pid = 0;
    Nanoseconds started = 0;
    std::uint64_t log_begin = 0;  // of this life in its log, which has all of them
    bool waiting = false;         // for its next start
    bool finished = false;        // with exit code 0
  };

  void watch_children() {
    child_signals_.async_wait([this](const boost::system::error_code& error, int) {
      if (error) return;
      for (const auto& [pid, end] : reap_children())
        for (const auto& process : all_)
          if (process->pid == pid) ended(*process, end);
      if (phase_ != Phase::over) watch_children();
    });
  }

  bool same_wish() {
    const auto now = clock_.now();
    if (last_wish_ && now - *last_wish_ < options_.same_wish) return true;
    last_wish_ = now;
    return false;
  }

  // Nothing once the whole is being stopped: what would start now had missed the signal.
  void launch(Process& process) {
    if (phase_ != Phase::running || given_up_.contains(process.plan.site)) return;
    process.waiting = false;
    process.finished = false;
    process.started = clock_.now();
    std::error_code no_log;
    const auto bytes = std::filesystem::file_size(process.plan.command.log_path, no_log);
    process.log_begin = no_log ? 0 : bytes;
    auto pid = start_child(process.plan.command);
    if (!pid) {
      const auto what = fmt::format("{}: {}", process.plan.name, pid.error().text());
      tell_about(process, "process_given_up", what, what);
      begin_stop(ExitCode::failed);
      return;
    }
    process.pid = *pid;
  }

  void ended(Process& process, const ProcessEnd& end) {
    using enum RestartDecision::What;
    process.pid = 0;
    if (phase_ == Phase::running && given_up_.contains(process.plan.site)) {
      process.delay.cancel();
      process.finished = true;
      stop_site(process.plan.site);
      return settle();
    }
    if (phase_ != Phase::running) {
      note_end_of_stop(process, end);
      return settle();
    }
    const auto decision =
        process.policy.on_end(end, clock_.now() - process.started, process.plan.progress());
    switch (decision.what) {
      case finished:
        process.finished = true;
        if (process.plan.is_gateway) serve_again_later(process);
        break;
      case stopped:
        tell_about(
            process, "process_stopped",
            fmt::format("{}: stopped by somebody else; stopping the rest", process.plan.name));
        begin_stop(ExitCode::stopped);
        break;
      case give_up:
        tell_about(process, "process_given_up",
                   fmt::format("{}: {}; {}", process.plan.name, end.text(), decision.reason),
                   why_of(process, end));
        tell_log(process);
        give_up_site(process, end.signal == 0 ? static_cast<ExitCode>(end.code) : ExitCode::failed);
        break;
      case restart:
        tell_about(process, "process_restarted",
                   fmt::format("{}: {}; started again in {:.1f} s{}", process.plan.name, end.text(),
                               seconds_of(decision.delay), reason_of(process, end)));
        start_later(process, decision.delay);
        break;
    }
    settle();
  }

  // Asked to stop, it ends with its code for that, or by the signal itself when it had not begun.
  // Anything else has not saved everything, of each process; what we killed ourselves was told.
  void note_end_of_stop(const Process& process, const ProcessEnd& end) {
    const bool clean = end.signal == 0 ? end.code == static_cast<int>(ExitCode::stopped) ||
                                             end.code == static_cast<int>(ExitCode::done)
                                       : end.signal == process.plan.stop_signal;
    if (clean || killed_) return;
    if (code_ == ExitCode::stopped) code_ = ExitCode::failed;
    tell_about(
        process, "process_failed_to_stop",
        fmt::format("{}: {} while it stopped: what it did since its last checkpoint may be lost",
                    process.plan.name, end.text()),
        why_of(process, end));
    tell_log(process);
  }

  void start_later(Process& process, Nanoseconds delay) {
    process.waiting = true;
    process.delay.expires_after(std::chrono::nanoseconds(delay));
    process.delay.async_wait([this, &process](const boost::system::error_code& error) {
      if (error || phase_ != Phase::running) return;
      launch(process);
      // Ranks that come back need their gateway, even if it had served its end.
      if (!process.plan.is_gateway)
        for (const auto& other : all_)
          if (other->plan.is_gateway && other->plan.site == process.plan.site && other->finished)
            launch(*other);
      settle();
    });
  }

  // The gateway of a complete run ends when every site has the last state, which may be before its
  // own ranks, started again, have come for it: they would wait for ever.
  void serve_again_later(Process& gateway) {
    gateway.delay.expires_after(std::chrono::nanoseconds(options_.serve_again));
    gateway.delay.async_wait([this, &gateway](const boost::system::error_code& error) {
      if (error || !gateway.finished) return;
      const bool needed = std::any_of(all_.begin(), all_.end(), [&gateway](const auto& other) {
        return other->plan.site == gateway.plan.site && !other->plan.is_gateway && other->pid > 0;
      });
      if (!needed) return;
      launch(gateway);
      settle();
    });
  }

  void tell_about(const Process& process, std::string id, std::string text, std::string why = {}) {
    tell_({.text = std::move(text),
           .id = std::move(id),
           .process = process.plan.name,
           .site = process.plan.site,
           .why = std::move(why)});
  }

  static std::string why_of(const Process& process, const ProcessEnd& end) {
    return fmt::format("{} {}{}", process.plan.name, end.text(), reason_of(process, end));
  }

  // What a process says last before it ends by itself, or at an assertion of ours.
  static std::string reason_of(const Process& process, const ProcessEnd& end) {
    const auto& path = process.plan.command.log_path;
    if ((end.signal != 0 && end.signal != SIGABRT) || path.empty()) return "";
    constexpr std::string_view kProgram = "isthmus: ";
    auto line = last_words(path, process.log_begin);
    if (line.starts_with(kProgram)) line.erase(0, kProgram.size());
    return line.empty() ? "" : ": " + line;
  }

  void tell_log(const Process& process) {
    constexpr int kLines = 8;
    const auto& path = process.plan.command.log_path;
    if (path.empty()) return;
    const auto lines = last_lines(path, kLines, process.log_begin);
    if (!lines.empty()) tell_({.text = fmt::format("the end of {}:\n{}", path, lines)});
  }

  // The end of all, unless the other sites can do without this one.
  void give_up_site(Process& process, ExitCode code) {
    const int site = process.plan.site;
    if (!options_.go_on_without(site)) return begin_stop(code);
    given_up_.insert(site);
    given_up_code_ = code;
    tell_about(process, "site_given_up", "the other sites go on without it");
    process.finished = true;
    stop_site(site);
  }

  // What is left of a site that is given up: its ranks, then its gateway.
  void stop_site(int site) {
    bool ranks = false;
    for (const auto& process : all_) {
      if (process->plan.site != site) continue;
      if (process->pid == 0) {
        process->delay.cancel();
        process->waiting = false;
        process->finished = true;
      }
      ranks |= process->pid > 0 && !process->plan.is_gateway;
    }
    for (const auto& process : all_) {
      if (process->plan.site != site || process->pid == 0 || process->plan.is_gateway == ranks)
        continue;
      signal_child(process->pid, process->plan.stop_signal);
      process->delay.expires_after(std::chrono::nanoseconds(options_.patience));
      process->delay.async_wait([&slow = *process](const boost::system::error_code& error) {
        if (!error && slow.pid > 0) signal_child(slow.pid, SIGKILL);
      });
    }
  }

  void begin_stop(ExitCode code) {
    if (phase_ != Phase::running) return;
    phase_ = Phase::stopping_ranks;
    code_ = code;
    for (const auto& process : all_) {
      process->delay.cancel();
      process->waiting = false;
      if (!process->plan.is_gateway && process->pid > 0)
        signal_child(process->pid, process->plan.stop_signal);
    }
    wait_patiently();
  }

  // A rank that hangs should not look like one that writes.
  void say_who_is_slow() {
    slow_.expires_after(std::chrono::nanoseconds(options_.patience / 4));
    slow_.async_wait([this](const boost::system::error_code& error) {
      if (error) return;
      std::string names;
      for (const auto& process : all_)
        if (process->pid > 0 && (phase_ == Phase::stopping_gateways || !process->plan.is_gateway))
          names += (names.empty() ? "" : ", ") + process->plan.name;
      if (!names.empty()) tell_({.text = fmt::format("still waits for {}", names)});
    });
  }

  void wait_patiently() {
    say_who_is_slow();
    patience_.expires_after(std::chrono::nanoseconds(options_.patience));
    patience_.async_wait([this](const boost::system::error_code& error) {
      if (!error) kill_all(fmt::format("not gone after {:.0f} s", seconds_of(options_.patience)));
    });
  }

  void kill_all(const std::string& why) {
    killed_ = true;
    for (const auto& process : all_)
      if (process->pid > 0) {
        tell_({.text = fmt::format("{}: {}", process->plan.name, why)});
        signal_child(process->pid, SIGKILL);
      }
    if (code_ == ExitCode::stopped) code_ = ExitCode::failed;  // not everything is saved
  }

  bool any(bool gateways) const {
    return std::any_of(all_.begin(), all_.end(), [gateways](const auto& process) {
      return process->plan.is_gateway == gateways && process->pid > 0;
    });
  }

  // Goes on to the next phase when this one is complete.
  void settle() {
    if (phase_ == Phase::running &&
        std::all_of(all_.begin(), all_.end(), [](const auto& p) { return p->finished; }))
      finish(given_up_code_);
    if (phase_ == Phase::stopping_ranks && !any(false)) {
      phase_ = Phase::stopping_gateways;
      for (const auto& process : all_)
        if (process->pid > 0) signal_child(process->pid, process->plan.stop_signal);
      wait_patiently();
    }
    if (phase_ == Phase::stopping_gateways && !any(true)) finish(code_);
  }

  void finish(ExitCode code) {
    phase_ = Phase::over;
    patience_.cancel();
    slow_.cancel();
    child_signals_.cancel();
    over_(code);
  }

  const Clock& clock_;
  SupervisorOptions options_;
  std::function<void(const Happening&)> tell_;
  std::function<void(ExitCode)> over_;
  asio::signal_set child_signals_;
  asio::steady_timer patience_, slow_;
  std::vector<std::unique_ptr<Process>> all_;  // handlers keep references
  Phase phase_ = Phase::running;
  std::optional<Nanoseconds> last_wish_;  // the last stop that was obeyed
  ExitCode code_ = ExitCode::done;
  bool killed_ = false;     // all that still ran when it was stopped
  std::set<int> given_up_;  // sites that the others go on without
  ExitCode given_up_code_ = ExitCode::done;
};

Supervisor::Supervisor(asio::io_context& io, const Clock& clock,
                       std::vector<SupervisedProcess> processes, SupervisorOptions options,
                       std::function<void(const Happening&)> tell,
                       std::function<void(ExitCode)> over)
    : state_(std::make_unique<State>(io, clock, std::move(processes), std::move(options),
                                     std::move(tell), std::move(over))) {}

Supervisor::~Supervisor() = default;

void Supervisor::start() { state_->start(); }
void Supervisor::stop() { state_->stop(); }
bool Supervisor::stopping() const { return state_->stopping(); }

}  // namespace isthmus::launcher

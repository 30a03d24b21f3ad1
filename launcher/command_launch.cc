#include <fmt/chrono.h>
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/counted.h"
#include "base/disk.h"
#include "base/event_log.h"
#include "base/printable.h"
#include "base/thread_pool.h"
#include "inter/outer_store.h"
#include "launcher/answer_watch.h"
#include "launcher/command.h"
#include "launcher/event_sentence.h"
#include "launcher/event_tail.h"
#include "launcher/monitor.h"
#include "launcher/run_folder.h"
#include "launcher/site_check.h"
#include "launcher/site_doubts.h"
#include "launcher/site_processes.h"
#include "launcher/status_source.h"
#include "launcher/step_lines.h"
#include "launcher/supervisor.h"
#include "launcher/terminal.h"
#include "launcher/units.h"
#include "runtime/checkpoint_folder.h"

namespace isthmus::launcher {
namespace {

namespace asio = boost::asio;

struct LaunchArguments {
  SiteArguments sites;
  bool plain = false;
};

// One launch: the processes, and what is shown of them meanwhile.
class Launch {
 public:
  Launch(std::vector<CheckedSite> sites, const LaunchArguments& options)
      : options_(options),
        disk_(make_system_disk()),
        clock_(make_system_clock()),
        sites_(std::move(sites)),
        signals_(io_, SIGINT, SIGTERM, SIGHUP),
        tick_(io_) {}

  Result<ExitCode> run() {
    for (const auto& site : sites_) ISTHMUS_CHECK(watch(site.file()));
    if (!options_.plain)
      if (auto terminal = Terminal::open()) terminal_ = std::move(*terminal);
    SupervisorOptions supervision;
    supervision.go_on_without = [this](int site) { return others_suffice(site); };
    supervision.patience = std::max(supervision.patience, longest_checkpoint());
    Supervisor supervisor(
        io_, *clock_, all_processes(), supervision,
        [this](const Happening& happening) { on_happening(happening); },
        [this](ExitCode code) { code_ = code; });
    supervisor_ = &supervisor;
    watch_signals();
    supervisor.start();
    on_tick();
    while (!code_) io_.run_one();
    show_events();
    terminal_.reset();
    say_goodbye();
    return *code_;
  }

 private:
  static constexpr std::size_t kNotes = 100;

  // What its processes will tell, from now on.
  Result<void> watch(const SiteFile& file) {
    const RunFolder folder(file.site.run_dir);
    ISTHMUS_CHECK(disk_->make_folders(folder.path()));
    ISTHMUS_CHECK(nobody_runs(folder));
    auto log = std::make_unique<EventLog>(*clock_, file.site.name);
    ISTHMUS_TRY(auto sink, make_file_sink(folder.events()));
    log->add(std::move(sink));
    logs_.push_back(std::move(log));
    events_.emplace_back(folder.events(), EventTail::From::end);
    metrics_.emplace_back(folder.metrics(), EventTail::From::end);
    step_lines_.emplace_back(file);
    histories_.emplace_back(file.site.name);
    sources_.push_back(make_status_source(file));
    answers_.emplace_back(file.site.name);
    return {};
  }

  // Said now, once, rather than by processes that would start again and again. Those of a launch
  // that was just killed are given a moment to go.
  Result<void> nobody_runs(const RunFolder& folder) {
    constexpr int kLooks = 20;
    for (int look = 1;; ++look) {
      const auto lock = lock_run(*disk_, folder);
      if (lock) return {};
      if (lock.error().code != ErrorCode::busy || look == kLooks) return lock.error();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  // Parameters, the two moments of AdamW and what a stop adds (runtime::TrainedOn), written and
  // read again, on a slow disk.
  Nanoseconds longest_checkpoint() const {
    constexpr double kBytesPerParameter = 2 * 20, kBytesPerSecond = 100e6;
    double longest = 0;
    for (const auto& site : sites_)
      longest = std::max(
          longest, kBytesPerParameter / kBytesPerSecond *
                       static_cast<double>(runtime::parameter_count(site.file().model.config)));
    return static_cast<Nanoseconds>(longest * 1e9);
  }

  std::vector<SupervisedProcess> all_processes() {
    std::vector<SupervisedProcess> all;
    for (std::size_t i = 0; i < sites_.size(); ++i)
      for (auto& process :
           site_processes(sites_[i].file(), sites_[i].text.path, options_.sites.overrides,
                          static_cast<int>(i), available_cpus().size())) {
        process.progress = [this, i] { return progress_of(i); };
        all.push_back(std::move(process));
      }
    return all;
  }

  // Whether the sites of this launch that are left can commit steps: their run has begun, and they
  // hold a majority of the voters. Sites launched elsewhere are not counted on.
  bool others_suffice(int site) {
    gone_.insert(static_cast<std::size_t>(site));
    std::size_t left = 0, voters_left = 0, voters = 0;
    for (std::size_t i = 0; i < sites_.size(); ++i) {
      const auto& file = sites_[i].file();
      if (gone_.contains(i)) continue;
      const auto& roster = sites_[i].roster;
      const auto begun = disk_->exists(RunFolder(file.site.run_dir).outer() + "/run");
      if (!roster || !begun || !*begun) return false;
      voters = roster->voters();
      if (const auto* self = roster->find(file.site.name); self != nullptr && self->voter)
        ++voters_left;
      ++left;
    }
    return 2 * voters_left > voters &&
           static_cast<std::int64_t>(left) >= sites_.front().file().sync.min_sites;
  }

  // Grows with each checkpoint and each outer step of the site.
  std::int64_t progress_of(std::size_t site) {
    const RunFolder folder(sites_[site].file().site.run_dir);
    const auto steps = runtime::list_checkpoints(*disk_, folder.checkpoints());
    return last_outer_step_[site] + (steps && !steps->empty() ? steps->back() : 0);
  }

  void watch_signals() {
    signals_.async_wait([this](const boost::system::error_code& error, int) {
      if (error) return;
      ask_to_stop();
      if (!code_) watch_signals();
    });
  }

  void on_tick() {
    constexpr auto kTick = std::chrono::milliseconds(100);
    // Without a monitor only whether they answer is asked.
    const int ticks_per_poll = terminal_ != nullptr ? 10 : 100;
    show_events();
    if (ticks_++ % ticks_per_poll == 0)
      for (std::size_t i = 0; i < sources_.size(); ++i) poll(i);
    if (terminal_ != nullptr) {
      for (Key key; (key = terminal_->read_key(0)) != Key::none;)
        if (key == Key::quit) ask_to_stop();
      terminal_->draw(render_monitor(histories_, notes_,
                                     "q or Ctrl-C stops the run, with a checkpoint",
                                     terminal_->width(), terminal_->height(), terminal_->glyphs()));
    }
    if (code_) return;
    tick_.expires_after(kTick);
    tick_.async_wait([this](const boost::system::error_code& error) {
      if (!error) on_tick();
    });
  }

  // A gateway that is being stopped need not answer.
  void poll(std::size_t site) {
    auto status = sources_[site]->poll();
    watch_answer(site, status);
    if (status)
      histories_[site].add(std::move(*status));
    else if (!supervisor_->stopping())
      histories_[site].add_trouble(status.error().text());
  }

  // A site that trains alone has no gateway.
  void watch_answer(std::size_t site, const Result<inter::GatewayStatus>& status) {
    auto& watch = answers_[site];
    if (sites_[site].file().alone()) return;
    if (!status && status.error().code != ErrorCode::timeout) return watch.absent();
    const auto text = status ? watch.answered(clock_->now()) : watch.silent(clock_->now());
    if (text && !supervisor_->stopping())
      on_happening({.text = *text,
                    .id = status ? "gateway_answers" : "gateway_hangs",
                    .process = sites_[site].file().site.name + " gateway",
                    .site = static_cast<int>(site)});
  }

  // Peers have written parts of what events tell.
  void say(std::string line) {
    line = printable_lines(line);
    if (terminal_ == nullptr) {
      fmt::print("{}\n", line);
      std::fflush(stdout);
      return;
    }
    notes_.push_back(std::move(line));
    if (notes_.size() > kNotes) notes_.erase(notes_.begin());
  }

  // Into the event log of its site too: who looks there later must see it.
  void on_happening(const Happening& happening) {
    const auto line = printable_lines(fmt::format("{} {}", now_text(), happening.text));
    say(line);
    if (terminal_ != nullptr) kept_ += line + "\n";
    if (why_.empty()) why_ = happening.why;
    if (happening.id.empty()) return;
    const auto write = [&](EventLog& log) {
      log.warning(happening.id, {}, {{"process", happening.process}, {"what", happening.text}});
    };
    if (happening.site >= 0)
      write(*logs_[static_cast<std::size_t>(happening.site)]);
    else
      for (const auto& log : logs_) write(*log);
  }

  std::string now_text() const { return time_text(seconds_of(clock_->unix_time())); }
  static std::string time_text(double unix_seconds) {
    return fmt::format("{:%H:%M:%S}", fmt::localtime(static_cast<std::time_t>(unix_seconds)));
  }

  // One line for each outer step, everything that is worth a warning, and what rate limit holds.
  void show_events() {
    for (std::size_t i = 0; i < sites_.size(); ++i) {
      const auto events = events_[i].poll();
      for (const auto& event : events) step_lines_[i].note(event);
      for (const auto& line : metrics_[i].poll()) on_metrics(i, line);
      for (const auto& event : events) {
        if (!is_for_people(event)) continue;
        if (event.fields.contains("process")) continue;  // our own, said already
        const auto sentence = sentence_of(event);
        if (sentence.empty()) continue;
        auto line = fmt::format("{} {} {}", time_text(event.time), event.site, sentence);
        if (terminal_ != nullptr && event.id == "end_not_everywhere")
          kept_ += printable_lines(line) + "\n";  // the monitor goes in the next moment
        say(std::move(line));
      }
    }
  }

  void on_metrics(std::size_t site, const LoggedEvent& line) {
    if (line.id == "merge")
      last_outer_step_[site] = std::max(last_outer_step_[site], line.outer_step);
    const auto text = step_lines_[site].line_of(line);
    if (terminal_ != nullptr || text.empty()) return;  // the monitor has it
    say(fmt::format("{} {}", time_text(line.time), text));
  }

  // A complete run stays as it is, whatever its file says by now.
  void say_if_shorter(const SiteFile& file) const {
    if (file.alone()) return;
    const auto records =
        inter::OuterStore::read_records(*disk_, RunFolder(file.site.run_dir).outer());
    const auto steps = records ? static_cast<std::int64_t>(records->size()) : 0;
    if (steps == 0 || steps >= file.sync.outer_steps) return;
    fmt::print(
        "{0}: it was complete after {1}, and sync.outer_steps = {2} adds none. To train on from\n"
        "its result, give each site a new run_dir, and a checkpoint of this run as model.from\n",
        file.site.name, counted(steps, "outer step"), file.sync.outer_steps);
  }

  void ask_to_stop() {
    stop_asked_ = true;
    supervisor_->stop();
  }

  void say_goodbye() const {
    fmt::print("{}", kept_);
    for (const auto& site : sites_) {
      const RunFolder folder(site.file().site.run_dir);
      fmt::print("{}: checkpoints in {}, events in {}, metrics in {}\n", site.file().site.name,
                 folder.checkpoints(), folder.events(), folder.metrics());
    }
    if (*code_ == ExitCode::done) {
      fmt::print("the run is complete\n");
      for (const auto& site : sites_) say_if_shorter(site.file());
    } else if (*code_ == ExitCode::stopped)
      fmt::print("stopped; the same command goes on from here\n");
    else
      fmt::print("{}{}\n{} the same command goes on from what is saved\n",
                 stop_asked_ ? "stopped, and not everything was saved first"
                             : "the run has not ended well: mend what is said above",
                 why_.empty() ? "" : printable_lines(": " + why_),
                 stop_asked_ ? "when it is run again," : "once that is mended,");
    std::fflush(stdout);
  }

  const LaunchArguments& options_;
  std::unique_ptr<Disk> disk_;
  std::unique_ptr<Clock> clock_;
  std::vector<CheckedSite> sites_;
  asio::io_context io_;
  asio::signal_set signals_;
  asio::steady_timer tick_;
  Supervisor* supervisor_ = nullptr;
  bool stop_asked_ = false;
  std::vector<std::unique_ptr<EventLog>> logs_;
  std::vector<EventTail> events_, metrics_;
  std::vector<StepLines> step_lines_;
  std::map<std::size_t, std::int64_t> last_outer_step_;  // by site
  std::set<std::size_t> gone_;                           // sites that have given up
  std::vector<SiteHistory> histories_;
  std::vector<std::unique_ptr<StatusSource>> sources_;
  std::vector<AnswerWatch> answers_;
  std::vector<std::string> notes_;
  std::string kept_;  // what happened to processes, for after the monitor
  std::string why_;   // the run has not ended well
  std::unique_ptr<Terminal> terminal_;
  int ticks_ = 0;
  std::optional<ExitCode> code_;
};

ExitCode run(const LaunchArguments& options) {
  guard_secrets();  // it looks at each site's identity
  auto sites = load_checked_sites(options.sites.paths, options.sites.overrides);
  if (!sites) return fail(sites.error());
  for (const auto& doubt : doubts_about(*sites, this_machine())) fmt::print("note: {}\n", doubt);
  Launch launch(std::move(*sites), options);
  const auto code = launch.run();
  return code ? *code : fail(code.error());
}

}  // namespace

void add_launch(Command program) {
  const auto command = program.subcommand(
      "launch", "Check a site's file, then start its gateway and ranks and keep them running");
  const auto options = std::make_shared<LaunchArguments>();
  add_site_arguments(command, options->sites, HowManySites::some);
  command.flag("--plain", options->plain, "Lines instead of the monitor, also on a terminal");
  command.footer(
      "Several files make a federation on this machine. What dies is started again. Ctrl-C stops "
      "cleanly,\nwith a checkpoint; twice, at once. Launched again, a run goes on from what its "
      "run_dir holds.\n\n"
      "Example:\n  isthmus launch alpha.toml\n  isthmus launch alpha.toml beta.toml --set "
      "sync.outer_steps=8");
  command.runs([options] { return run(*options); });
}

}  // namespace isthmus::launcher

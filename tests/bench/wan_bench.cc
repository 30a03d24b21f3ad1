// wan_bench: how long an outer step takes over a wide-area path, as a multiple of the ideal: one
// byte per parameter at the shaped rate, plus one round trip.
//
// Gateways are real processes in network namespaces that the emulator (tests/wan) joins. At the
// same instant all sites contribute an f32 model as their ranks would hand it over; the step has
// ended when the new parameters have been given to the ranks of every site. Votes and own encoded
// bytes are on disk by then; the state follows, and the next exchange begins after it. The run's
// last step, whose state all have saved before it is published, is not measured.
//
//   wan_bench --path 'delay=50ms rate=1gbit loss=0.1%' --cc bbr --parameters 67108864
//
// With --access each site has a line that all its paths share, and the ideal is what it has to
// carry: one byte per parameter for each other site.
//
// Needs root, for the namespaces. Without --path: every case of the table in docs/performance.md.
// Ctrl-C ends the run at hand, and what the others measured is reported.
#include <fcntl.h>
#include <fmt/core.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/counted.h"
#include "base/large_vector.h"
#include "tests/bench/bench_site.h"
#include "tests/bench/command_line.h"
#include "tests/bench/median.h"
#include "tests/bench/report.h"
#include "tests/bench/seconds.h"
#include "tests/bench/wan_case.h"

namespace isthmus::bench {
namespace {

using namespace inter;  // what is measured here

constexpr const char* kInside = "ISTHMUS_WAN_BENCH_INSIDE";  // set for the run in the namespaces
constexpr int kCannotRun = 77;  // as with_wan says it: not root, or no devices
constexpr int kInterrupted = 130;

struct KernelWindows {
  std::uint64_t receive = 0, send = 0;  // bytes of a connection, at most
};

struct Options {
  std::string path;
  std::string access;
  std::string cc = "bbr";
  std::uint64_t parameters = 64 << 20;
  std::uint64_t sites = 2;
  std::uint64_t exchanges = 6;
  std::uint64_t runs = 3;
  std::uint64_t iperf_seconds = 6;
  double pause = 0.5;
  std::string codec = "int8";
  std::string outer = "nesterov";
  std::string windows = "raised";
  std::string folder;
  bool json = false;

  // One more than are measured: before the parameters of the last one are published all sites have
  // the state on disk, and know it of each other.
  std::uint64_t outer_steps() const { return exchanges + 1; }
  // As `isthmus link test` says how to raise them, or as distributions have them.
  KernelWindows kernel_windows() const {
    if (windows == "raised") return {64 << 20, 64 << 20};
    return {6 << 20, 4 << 20};
  }
};

// --- Cases

WanCase usable(const Options& options, const std::string& path, const std::string& cc,
               std::uint64_t parameters) {
  auto one = checked({.path = path,
                      .access = options.access,
                      .cc = cc,
                      .parameters = parameters,
                      .sites = options.sites,
                      .line = {},
                      .own_line = {}});
  if (one) return std::move(*one);
  bad_usage(one.error().text());
}

std::vector<WanCase> cases_of(const Options& options) {
  if (!options.path.empty()) return {usable(options, options.path, options.cc, options.parameters)};
  std::vector<WanCase> cases;
  for (const auto* cc : {"bbr", "cubic"}) {
    for (const auto* path :
         {"delay=50ms rate=100mbit loss=0.1%", "delay=50ms rate=1gbit",
          "delay=50ms rate=1gbit loss=0.1%", "delay=50ms rate=1gbit loss=1%",
          "delay=100ms rate=1gbit loss=0.01%", "delay=150ms rate=10mbit loss=0.5% burst=20"})
      cases.push_back(usable(options, path, cc, options.parameters));
    cases.push_back(usable(options, "delay=50ms rate=1gbit", cc, 1 << 18));
  }
  return cases;
}

// --- One site

struct Go {
  double at = 0;  // wall_seconds() when all sites contribute
};
struct Exchanged {
  std::uint64_t step = 0;
  double published = 0;                // wall_seconds() when the ranks could read the parameters
  double cpu_seconds = 0;              // of the process, until the state was saved
  std::uint32_t bulk_connections = 0;  // to the next site
};

// Contribute when they are told to. As real ranks they are given the parameters in a memory of
// their own.
class ToldRanks final : public Ranks {
 public:
  ToldRanks(Loop& loop, Gateway& gateway, std::vector<float> progress, int from, int to)
      : loop_(loop),
        gateway_(gateway),
        progress_(std::move(progress)),
        memory_(progress_.size()),
        to_(to) {
    parameters_.resize(progress_.size());
    listener_ = std::thread([this, from] {
      for (Go go; ::read(from, &go, sizeof go) == sizeof go;)
        loop_.post([this, go] { contribute_at(go.at); });
    });
    listener_.detach();
  }
  bool reading() const override { return false; }
  bool all_took() const override { return true; }
  void forget() override {}
  std::shared_ptr<StateDraft> draft() override { return memory_.draft(); }
  void publish(const Published& state) override {
    memory_.publish(state);
    exchanged_ = {.step = state.step, .published = wall_seconds()};
    if (state.final_step) return tell();
    const double before = thread_seconds();
    const auto state_of_ranks = memory_.parameters();
    for (std::size_t i = 0; i < state_of_ranks.size(); ++i)
      parameters_[i] = state_of_ranks[i] - progress_[i];
    not_counted_ += thread_seconds() - before;
    tell_once_saved();
  }
  void refuse(const Error& why) override { give_up(why.text()); }
  std::vector<RankStatus> status() const override { return {}; }

 private:
  void tell_once_saved() {
    if (gateway_.saved_step() >= exchanged_.step) return tell();
    loop_.call_after(5 * kMillisecond, [this] { tell_once_saved(); });
  }
  void tell() {
    exchanged_.cpu_seconds = process_seconds() - began_cpu_ - not_counted_;
    if (const auto links = gateway_.status().links; !links.empty())
      exchanged_.bulk_connections = links.front().bulk_connections;
    if (::write(to_, &exchanged_, sizeof exchanged_) != sizeof exchanged_) give_up("no parent");
  }
  void contribute_at(double when) {
    const auto wait = std::max(0.0, when - wall_seconds());
    loop_.call_after(static_cast<Nanoseconds>(wait * 1e9), [this] {
      began_cpu_ = process_seconds();
      not_counted_ = 0;
      check(gateway_.contribute(exchanged_.step + 1, std::make_shared<ValuesInPlace>(parameters_),
                                1000));
    });
  }

  Loop& loop_;
  Gateway& gateway_;
  std::vector<float> progress_;
  RankMemory memory_;
  LargeVector<float> parameters_;
  const int to_;
  std::thread listener_;
  Exchanged exchanged_;
  double began_cpu_ = 0, not_counted_ = 0;
};

void enter_namespace(const std::string& name) {
  const int space = ::open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (space < 0 || ::setns(space, CLONE_NEWNET) != 0) give_up("cannot enter the namespace " + name);
  ::close(space);
}

[[noreturn]] void run_site(const Options& options, const LoopbackFederation& federation,
                           std::size_t self, const std::string& folder, int from, int to) {
  auto site = site_on_own_cpu(federation, self, options.parameters);
  site.congestion_control = options.cc;
  site.options.sync = sync_of(options.codec, options.outer, options.outer_steps(), options.sites);
  site.options.folder = folder;
  const auto elements = layout_of(options.parameters).elements();
  run_bench_site(std::move(site), [&](Loop& loop, Gateway& gateway) {
    return std::make_unique<ToldRanks>(loop, gateway, inner_progress(elements, self + 10), from,
                                       to);
  });
  std::_Exit(0);
}

// --- All sites, in the namespaces

// Looks at what arrives at a namespace, whoever sends it, while it exists.
class ArrivalWatch {
 public:
  explicit ArrivalWatch(const std::string& space) : thread_([this, space] { look(space); }) {}
  ~ArrivalWatch() {
    stop_ = true;
    thread_.join();
  }
  ArrivalWatch(const ArrivalWatch&) = delete;
  ArrivalWatch& operator=(const ArrivalWatch&) = delete;

  // Bit/s, the median of all stretches between two moments.
  double rate(double from, double to) const {
    const std::lock_guard lock(mutex_);
    std::vector<double> rates;
    for (std::size_t i = 1; i < moments_.size(); ++i) {
      const auto &before = moments_[i - 1], &after = moments_[i];
      if (before.when >= from && after.when <= to)
        rates.push_back(8 * (after.bytes - before.bytes) / (after.when - before.when));
    }
    return rates.empty() ? 0 : median(std::move(rates));
  }

 private:
  struct Moment {
    double when = 0, bytes = 0;
  };
  void look(const std::string& space) {
    enter_namespace(space);
    while (!stop_) {
      std::ifstream devices("/proc/thread-self/net/dev");
      for (std::string line; std::getline(devices, line);)
        if (const auto at = line.find("wan0:"); at != std::string::npos) {
          const std::lock_guard lock(mutex_);
          moments_.push_back({wall_seconds(), std::stod(line.substr(at + 5))});
        }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  mutable std::mutex mutex_;
  std::vector<Moment> moments_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// What arrives at the first namespace, bit/s, while so many streams go both ways between it and the
// second. 0: it did not run.
double iperf(const Options& options, const std::vector<std::string>& spaces,
             const ArrivalWatch& watch, std::uint32_t streams) {
  const auto in_background = [](const std::string& space, std::vector<std::string> command) {
    const pid_t process = fork_child();
    if (process != 0) return process;
    enter_namespace(space);
    const int nowhere = ::open("/dev/null", O_WRONLY);
    for (const int said : {STDOUT_FILENO, STDERR_FILENO}) ::dup2(nowhere, said);
    std::vector<char*> arguments;
    for (auto& argument : command) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    ::execvp(arguments[0], arguments.data());
    std::_Exit(1);
  };
  constexpr int kWarmUp = 2;
  constexpr double kFarewell = 1;  // while both ends compare notes
  const auto server = in_background(spaces[0], {"iperf3", "-s", "-1"});
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const auto client = in_background(
      spaces[1], {"iperf3", "-c", "10.77.0.1", "--bidir", "-P", std::to_string(streams), "-t",
                  std::to_string(options.iperf_seconds + kWarmUp), "-C", options.cc});
  int status = 0;
  ::waitpid(client, &status, 0);
  ::kill(server, SIGTERM);
  ::waitpid(server, nullptr, 0);
  if (status != 0) {
    fmt::print(stderr, "wan_bench: iperf3 did not run; its figure is left out\n");
    return 0;
  }
  // It begins once all streams are up, one after the other.
  const double ended = wall_seconds() - kFarewell;
  return watch.rate(ended - static_cast<double>(options.iperf_seconds), ended);
}

// Prints {"seconds": [of each exchange], "cpu": [of all sites], "flow": [bit/s that arrived at the
// first site in the middle half of each], "streams": bulk connections, "iperf": bit/s with as
// many}.
int run_inside(const Options& options) {
  end_with_parent();  // with_wan, which only SIGKILL keeps from ending us
  std::vector<std::string> spaces, addresses;
  std::istringstream names(std::getenv("WAN_NAMESPACES"));
  for (std::string name; names >> name;) {
    spaces.push_back(name);
    addresses.push_back(fmt::format("10.77.0.{}:7000", spaces.size()));
  }
  const auto federation = make_federation_at(addresses);
  const TemporaryPlace place(options.folder, "wan_bench");
  std::vector<pid_t> children;
  std::vector<int> from, to;  // each child
  for (std::size_t self = 0; self < spaces.size(); ++self) {
    std::array<int, 2> down{}, up{};
    if (::pipe(down.data()) != 0 || ::pipe(up.data()) != 0) give_up("no pipe");
    const pid_t child = fork_child();
    if (child == 0) {
      enter_namespace(spaces[self]);
      run_site(options, federation, self, fmt::format("{}/{}", place.path(), self), down[0], up[1]);
    }
    ::close(down[0]);
    ::close(up[1]);
    children.push_back(child);
    from.push_back(up[0]);
    to.push_back(down[1]);
  }
  const ArrivalWatch watch(spaces[0]);
  nlohmann::json seconds = nlohmann::json::array(), cpu = seconds, flow = seconds;
  // Far more than any line takes that is worth a figure.
  const double patience =
      120 + 100 * usable(options, options.path, options.cc, options.parameters).ideal();
  double began = 0;
  std::uint32_t streams = 1;
  for (std::uint64_t step = 0; step <= options.outer_steps(); ++step) {
    double published = 0, cpu_seconds = 0;
    const auto late = fmt::format(
        "outer step {} is not there after {:.0f} s: the line carries too little", step, patience);
    const auto wait = std::max(0.0, began - wall_seconds());
    for (const auto& said : hear_all<Exchanged>(from, wait + patience, late)) {
      if (said.step != step) give_up("a gateway is at another step than the others");
      published = std::max(published, said.published);
      cpu_seconds += said.cpu_seconds;
      if (step < options.outer_steps()) streams = std::max(streams, said.bulk_connections);
    }
    if (step > 0 && step < options.outer_steps()) {
      const double quarter = (published - began) / 4;
      flow.push_back(watch.rate(began + quarter, published - quarter));
      seconds.push_back(published - began);
      cpu.push_back(cpu_seconds);
    }
    if (step == options.outer_steps()) break;
    began = wall_seconds() + options.pause;
    const Go go{began};
    for (const int child : to)
      if (::write(child, &go, sizeof go) != sizeof go) give_up("a gateway has gone");
  }
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  const double rate = options.iperf_seconds > 0 ? iperf(options, spaces, watch, streams) : 0;
  fmt::print(
      "{}\n",
      nlohmann::json{
          {"seconds", seconds}, {"cpu", cpu}, {"flow", flow}, {"streams", streams}, {"iperf", rate}}
          .dump());
  return 0;
}

// --- All cases, from outside

std::atomic<bool> interrupted = false;
std::atomic<pid_t> run_at_hand = 0;  // with_wan, which ends what it has started

void end_run_at_hand() {
  if (const pid_t process = run_at_hand; process != 0) ::kill(process, SIGTERM);
}

// From now on SIGINT ends no more than the run at hand.
void catch_interrupt() {
  struct sigaction action = {};
  action.sa_flags = SA_RESTART;  // what is read of the run ends with it
  action.sa_handler = [](int) {
    interrupted = true;
    end_run_at_hand();
  };
  ::sigaction(SIGINT, &action, nullptr);
}

struct Measured {
  std::vector<double> first, warm, cpu, flow, streams, iperf;
};

// False: it was interrupted.
bool measure(const Options& options, const WanCase& one, Measured& measured) {
  const auto with_wan = [] {
    const char* chosen = std::getenv("ISTHMUS_WITH_WAN");
    return std::string(chosen != nullptr ? chosen : ISTHMUS_WITH_WAN);
  }();
  std::vector<std::string> command = {with_wan, "-n", std::to_string(options.sites), "-l",
                                      "default " + one.path};
  for (std::uint64_t site = 0; !one.access.empty() && site < options.sites; ++site)
    for (const auto* direction : {"uplink", "downlink"})
      command.insert(command.end(), {"-l", fmt::format("{} {} {}", direction, site, one.access)});
  std::array<char, 4096> self{};
  if (::readlink("/proc/self/exe", self.data(), self.size() - 1) < 0) give_up("no /proc");
  command.insert(command.end(), {"--", self.data()});
  const auto add = [&](const char* name, const auto& value) {
    command.push_back(fmt::format("{}={}", name, value));
  };
  add("--path", one.path);
  if (!one.access.empty()) add("--access", one.access);
  add("--cc", one.cc);
  add("--parameters", one.parameters);
  add("--sites", options.sites);
  add("--exchanges", options.exchanges);
  add("--iperf-seconds", options.iperf_seconds);
  add("--pause", options.pause);
  add("--codec", options.codec);
  add("--outer", options.outer);
  if (!options.folder.empty()) add("--folder", options.folder);
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) give_up("no pipe");
  const pid_t child = fork_child(SIGTERM);  // with_wan ends what it has started
  if (child == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    ::setenv(kInside, "1", 1);
    if (one.cc != "bbr") ::setenv("WAN_CC", one.cc.c_str(), 1);
    const auto windows = options.kernel_windows();
    ::setenv("WAN_RMEM", std::to_string(windows.receive).c_str(), 1);
    ::setenv("WAN_WMEM", std::to_string(windows.send).c_str(), 1);
    std::vector<char*> arguments;
    for (auto& argument : command) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    ::execv(arguments[0], arguments.data());
    give_up("cannot run " + with_wan);
  }
  run_at_hand = child;
  if (interrupted) end_run_at_hand();  // since before there was one
  ::close(ends[1]);
  std::string text;
  std::array<char, 4096> some{};
  for (ssize_t count = 0; (count = ::read(ends[0], some.data(), some.size())) > 0;)
    text.append(some.data(), static_cast<std::size_t>(count));
  ::close(ends[0]);
  run_at_hand = 0;
  int status = 0;
  ::waitpid(child, &status, 0);
  if (interrupted && status != 0) return false;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kCannotRun) std::exit(kCannotRun);
  const auto said = nlohmann::json::parse(text, nullptr, false);
  if (status != 0 || said.is_discarded()) give_up("no figures of " + one.name());
  const auto seconds = said.at("seconds").get<std::vector<double>>();
  measured.first.push_back(seconds.front());
  for (std::size_t i = 2; i < seconds.size(); ++i) {
    measured.warm.push_back(seconds[i]);
    measured.cpu.push_back(said.at("cpu").at(i).get<double>());
    measured.flow.push_back(said.at("flow").at(i).get<double>());
  }
  measured.streams.push_back(said.at("streams").get<double>());
  measured.iperf.push_back(said.at("iperf").get<double>());
  return true;
}

// Each as it comes: whoever kills this before all are done has those that are.
std::vector<Measured> measure_all(const Options& options, const std::vector<WanCase>& cases) {
  catch_interrupt();
  const auto runs = options.runs * cases.size();
  std::vector<Measured> measured(cases.size());
  for (std::uint64_t i = 0; i < runs; ++i) {
    const auto& one = cases[i % cases.size()];
    auto& m = measured[i % cases.size()];
    fmt::print(stderr, "run {} of {}: {}\n", i + 1, runs, one.name());
    const auto before = static_cast<std::ptrdiff_t>(m.warm.size());
    if (interrupted || !measure(options, one, m)) {
      fmt::print(stderr, "wan_bench: interrupted: {} of {} measured\n", i, counted(runs, "run"));
      break;
    }
    fmt::print(stderr, "  {:.2f} times the ideal, the first exchange {:.2f}\n",
               median({m.warm.begin() + before, m.warm.end()}) / one.ideal(),
               m.first.back() / one.ideal());
  }
  return measured;
}

int run(const Options& options) {
  const auto cases = cases_of(options);
  const auto measured = measure_all(options, cases);
  if (measured.front().first.empty()) return kInterrupted;
  const Report all(options.json, {{"sites", options.sites},
                                  {"codec", options.codec},
                                  {"outer", options.outer},
                                  {"kernel_windows", options.windows},
                                  {"exchanges", options.exchanges}});
  all.heading(
      fmt::format("{} gateways over the emulator, codec {}, outer {}, {} of {}\n"
                  "  the kernel's windows: {} and {} MiB at most, to receive and to send\n"
                  "  on: {}",
                  options.sites, options.codec, options.outer, counted(options.runs, "run"),
                  counted(options.exchanges, "exchange"), options.kernel_windows().receive >> 20,
                  options.kernel_windows().send >> 20, kWhatIsOn));
  say_what_is_on(all);
  for (std::size_t j = 0; j < cases.size(); ++j) {
    const auto& one = cases[j];
    const auto& m = measured[j];
    const auto runs = m.first.size();
    if (runs == 0) break;  // interrupted before it came to these
    const double bytes = 4.0 * static_cast<double>(options.sites * one.parameters);
    const auto report = all.of({{"path", one.path},
                                {"access", one.access},
                                {"cc", one.cc},
                                {"parameters", one.parameters},
                                {"runs", runs}});
    report.heading(runs == options.runs ? one.name()
                                        : fmt::format("{}: {} of {}", one.name(), runs,
                                                      counted(options.runs, "run")));
    report.row("exchange, third and later / ideal", median(m.warm) / one.ideal(), "1");
    report.row("first exchange / ideal", median(m.first) / one.ideal(), "1");
    report.row("exchange, third and later", median(m.warm), "s");
    report.row("worst of them", *std::ranges::max_element(m.warm), "s");
    report.row("ideal", one.ideal(), "s");
    report.row("f32 contributed by all / CPU-second of all", bytes / median(m.cpu) * 1e-9, "GB/s");
    report.row("bulk connections", median(m.streams), "1");
    if (const double rate = median(m.flow); rate > 0)  // it takes long enough to tell
      report.row("arrived in the middle half of an exchange", rate * 1e-6, "Mbit/s");
    if (const double rate = median(m.iperf); rate > 0)
      report.row("arrived while iperf3 had as many streams", rate * 1e-6, "Mbit/s");
  }
  return measured.back().first.size() == options.runs ? 0 : kInterrupted;
}

}  // namespace
}  // namespace isthmus::bench

int main(int argc, char** argv) {
  using namespace isthmus::bench;
  end_on_interrupt();
  Options options;
  std::string bounds(kWanBounds);
  bounds.replace(bounds.find(" loss="), 1, "\n");
  CommandLine line(
      "How long an outer step takes over a wide-area path, as a multiple of one byte per\n"
      "parameter at the shaped rate plus one round trip. Needs root, for network namespaces.",
      options.json);
  line.text(
      "--path", options.path,
      fmt::format("of every pair of sites, as the emulator takes it (tests/wan/README.md):\n"
                  "'delay=50ms rate=1gbit loss=0.1%' (loss=0.1, a share, is 10%). delay= must be\n"
                  "there, and rate=, unless --access has it; there may be\n{}.\n"
                  "Without --path: all standard cases",
                  bounds));
  line.text("--access", options.access,
            "of every site's own line, each direction: 'rate=100mbit queue=2mb';\n"
            "rate= must be there");
  line.choice("--cc", options.cc, {"bbr", "cubic", "reno"}, "congestion control");
  line.number("--parameters", options.parameters, 1024, std::uint64_t{1} << 32, "of the model");
  line.number("--sites", options.sites, 2, 8, "each with a gateway");
  line.number("--exchanges", options.exchanges, 3, 1000, "measured of a run");
  line.number("--runs", options.runs, 1, 1000, "of each case, interleaved");
  line.number("--iperf-seconds", options.iperf_seconds, 0, 600, "0: without iperf3");
  line.number("--pause", options.pause, 0, 3600, "seconds between exchanges, for the ranks");
  line.choice("--codec", options.codec, {"none", "bf16", "int8"}, "of the pseudo-gradient");
  line.choice("--outer", options.outer, {"average", "nesterov"}, "the outer optimizer");
  line.choice("--windows", options.windows, {"raised", "usual"},
              "of a connection in the kernel (tcp_rmem, tcp_wmem), at most: 64 MiB, or 6 to\n"
              "receive and 4 to send as distributions have them");
  line.folder("--folder", options.folder, "for the gateways' files (default: the system's)");
  line.ends(
      "Status: 0 measured, 1 not, 2 bad usage, 77 it cannot run here, for a reason that with_wan\n"
      "says: not root, no /dev/net/tun, or no right to make namespaces; 130 interrupted (Ctrl-C):\n"
      "the runs that were measured by then are reported.");
  line.parse(argc, argv);
  if (std::getenv(kInside) != nullptr) return after_output(run_inside(options));
  return after_output(run(options));
}

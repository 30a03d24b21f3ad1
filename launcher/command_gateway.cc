#include <fmt/format.h>
#include <signal.h>
#include <sys/random.h>

#include <algorithm>
#include <boost/asio/signal_set.hpp>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "base/byte_stream.h"
#include "base/clock.h"
#include "base/disk.h"
#include "base/event_log.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "base/workers.h"
#include "inter/attach_server.h"
#include "inter/gateway.h"
#include "inter/loop.h"
#include "inter/zmq_wire.h"
#include "launcher/command.h"
#include "launcher/event_sentence.h"
#include "launcher/kill_point.h"
#include "launcher/metrics_server.h"
#include "launcher/run_folder.h"
#include "launcher/site_check.h"
#include "launcher/traffic.h"
#include "security/identity.h"
#include "security/roster_memory.h"
#include "security/secret.h"

namespace isthmus::launcher {
namespace {

constexpr Nanoseconds kSampleEvery = 100 * kMillisecond;  // while a link waits for something
constexpr Nanoseconds kSampleIdle = kSecond;
constexpr Nanoseconds kNoteEvery = 5 * kSecond;  // the traffic file
constexpr std::string_view kRosterExpired =
    "sessions go on, but none begins; ask the operator for a newer roster";

inter::SyncOptions sync_options(const SyncOptions& sync) {
  inter::SyncOptions options;
  options.inner_steps = static_cast<std::uint64_t>(sync.inner_steps);
  options.outer_steps = static_cast<std::uint64_t>(sync.outer_steps);
  options.outer = {.kind = sync.outer,
                   .rate = static_cast<float>(sync.outer_rate),
                   .momentum = static_cast<float>(sync.outer_momentum)};
  options.codec = sync.codec;
  options.min_sites = static_cast<std::uint32_t>(sync.min_sites);
  options.absent_steps = static_cast<std::uint32_t>(sync.absent_steps);
  options.max_lead = static_cast<std::uint32_t>(sync.max_lead);
  return options;
}

// One gateway per site yet: the first of the site's list.
inter::ZmqWireOptions wire_options(const SiteFile& file, const security::Roster& roster,
                                   const security::RosterSite& self,
                                   const security::Identity& identity) {
  inter::ZmqWireOptions options;
  options.self = {.site = self.id, .index = 0};
  options.identity = &identity;
  options.listen = file.gateway.listen;
  options.polite = file.gateway.polite;
  options.congestion_control =
      file.gateway.congestion_control == "system" ? "" : file.gateway.congestion_control;
  options.bulk_connections_max = static_cast<std::uint32_t>(file.gateway.bulk_connections);
  options.own_address = self.gateways.front().address;
  for (const auto& site : roster.sites)
    if (site.id != self.id)
      options.peers.push_back({.id = {.site = site.id, .index = 0},
                               .name = site.name,
                               .key = site.gateways.front().curve_key,
                               .identity = site.identity,
                               .address = site.gateways.front().address});
  return options;
}

Result<Random> secret_random() {
  std::uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) != sizeof seed)
    return error_of_errno(errno, "the system gives no randomness");
  return Random(seed);
}

// Only the report is poorer where there is none.
Traffic earlier_traffic(const Disk& disk, const RunFolder& folder, EventLog& log) {
  constexpr std::size_t kBytesMax = std::size_t{1} << 20;
  auto traffic = [&]() -> Result<Traffic> {
    ISTHMUS_TRY(const auto bytes, read_file(disk, folder.traffic(), kBytesMax));
    return parse_traffic(text_of(bytes));
  }();
  if (traffic) return std::move(*traffic);
  if (traffic.error().code != ErrorCode::not_found)
    log.warning("file_damaged", {},
                {{"what", fmt::format("{}: {}", folder.traffic(), traffic.error().text())},
                 {"then", "what links carried before this start is not in the report"}});
  return {};
}

// Whole, but not made durable: on the loop's thread nothing may wait for the disk, and losing the
// last of it makes only the report poorer.
Result<void> replace_lazily(const std::string& path, std::string_view text) {
  const auto temporary = path + ".new";
  errno = 0;
  std::ofstream out(temporary, std::ios::binary);
  if (!(out << text << std::flush)) return error_of_errno(errno, "cannot write " + temporary);
  if (std::rename(temporary.c_str(), path.c_str()) != 0)
    return error_of_errno(errno, "cannot write " + path);
  return {};
}

// Everything that is real, wired together, and run until the end.
class Site {
 public:
  explicit Site(const CheckedSite& checked)
      : file_(checked.file()),
        roster_(*checked.roster),
        self_(*roster_.find(file_.site.name)),
        folder_(file_.site.run_dir),
        disk_(make_system_disk()),
        clock_(make_system_clock()),
        log_(*clock_, file_.site.name),
        loop_(*clock_),
        signals_(loop_.io()) {}

  // `warnings`: what the system would not do to keep the secrets.
  Result<ExitCode> run(std::span<const Error> warnings) {
    // Before the first thread is started: all of them inherit these.
    if (!file_.gateway.zone.empty()) use_time_zone(file_.gateway.zone);
    const bool confined = file_.gateway.cpus.empty() || confine_this_thread(file_.gateway.cpus);
    ISTHMUS_TRY(lock_, lock_run(*disk_, folder_));
    ISTHMUS_CHECK(open_log());
    for (const auto& warning : warnings)
      log_.warning("process_not_hardened", {}, {{"why", warning.text()}});
    if (!confined) log_.warning("gateway_not_confined", {}, {{"cpus", "the system refused them"}});
    ISTHMUS_CHECK(admit_sites());
    ISTHMUS_CHECK(open_wire());
    ISTHMUS_CHECK(make_gateway());
    ISTHMUS_CHECK(serve_ranks());
    follow_windows();
    start_metrics();
    stop_on_signals();
    ISTHMUS_CHECK(run_to_the_end());
    return stopped_ && !gateway_->finished() ? ExitCode::stopped : ExitCode::done;
  }

 private:
  Result<void> open_log() {
    ISTHMUS_TRY(auto events, make_file_sink(folder_.events()));
    log_.add(std::move(events));
    log_.add(make_terminal_sink(2, Severity::info));
    return {};
  }

  Result<void> admit_sites() {
    ISTHMUS_CHECK(security::admit_roster(*disk_, folder_.path(),
                                         {.epoch = roster_.epoch, .digest = roster_.digest}));
    ISTHMUS_TRY(identity_, security::Identity::load(file_.site.identity));
    verifier_ = security::make_verifier(roster_);
    return {};
  }

  // A gateway that was just killed may have its ports for a moment still; anybody else keeps them.
  Result<void> open_wire() {
    constexpr int kLooks = 20;
    for (int look = 1;; ++look) {
      auto wire =
          inter::make_zmq_wire(loop_, log_, wire_options(file_, roster_, self_, *identity_));
      if (wire) {
        wire_ = std::move(*wire);
        return {};
      }
      if (wire.error().code == ErrorCode::invalid_argument)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("gateway.listen = \"{}\" must be an address of this machine, or "
                                 "0.0.0.0 for all of them",
                                 file_.gateway.listen),
                     wire.error()};
      if (wire.error().code != ErrorCode::in_use) return wire.error();
      if (look == kLooks)
        return Error{ErrorCode::in_use,
                     fmt::format("another process has a port of gateway.listen = \"{}\" (bulk data "
                                 "use the next one); `ss -ltnp` shows which: stop it, or choose "
                                 "another port, here and in the roster",
                                 file_.gateway.listen),
                     wire.error()};
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  Result<void> make_gateway() {
    ISTHMUS_TRY(const Random random, secret_random());
    workers_ = make_thread_workers(
        [this](std::function<void()> done) { loop_.post(std::move(done)); }, worker_cpus());
    inter::GatewayOptions options;
    options.sync = sync_options(file_.sync);
    options.folder = folder_.outer();
    options.rate_limit_bytes_per_second = static_cast<double>(file_.gateway.rate_limit) / 8;
    options.rate_limit_bytes_per_second_min =
        static_cast<double>(file_.gateway.rate_limit_min()) / 8;
    options.polite = file_.gateway.polite;
    if (file_.sync.straggler_wait >= 0) options.straggler_wait = file_.sync.straggler_wait;
    options.link.bulk_connections_max = static_cast<std::uint32_t>(file_.gateway.bulk_connections);
    options.link.window_bytes_max = static_cast<std::uint64_t>(file_.gateway.receive_window);
    ISTHMUS_TRY(options.at_point,
                make_kill_point(folder_.path(), [this] { return rank_processes(); }));
    gateway_ = std::make_unique<inter::Gateway>(inter::Gateway::World{.loop = loop_,
                                                                      .wire = *wire_,
                                                                      .disk = *disk_,
                                                                      .workers = *workers_,
                                                                      .log = log_,
                                                                      .random = random,
                                                                      .signer = *identity_,
                                                                      .verifier = *verifier_},
                                                roster_, self_.id, std::move(options));
    return {};
  }

  Result<void> serve_ranks() {
    inter::AttachOptions options;
    options.memory_bytes_max = static_cast<std::uint64_t>(file_.gateway.memory);
    ranks_ = std::make_unique<inter::AttachServer>(
        loop_, log_, folder_.socket(), *gateway_, [this] { return status(); }, options);
    ranks_->serve_link_tests(
        [this](const inter::attach::LinkTest& wish) {
          return gateway_->test_link(
              wish.number, wish.peer,
              {.peer = {}, .force = wish.force, .time = wish.time, .bytes_max = wish.bytes_max});
        },
        [this](std::uint64_t number) { gateway_->stop_link_test(number); });
    gateway_->serve(*ranks_);
    return ranks_->listen();
  }

  // Ranks that train data parallel are in step, and the first alone attaches: it speaks for all.
  inter::GatewayStatus status() const {
    auto status = gateway_->status();
    if (status.ranks.size() == 1)
      status.ranks.front().world = static_cast<std::uint32_t>(file_.mesh.ranks());
    if (rate_now_) status.rate_limit = rate_sentence(*rate_now_);
    for (const auto& link : status.links)
      if (link.window_used >= inter::kWindowFull)
        status.attention.push_back(window_sentence(link.peer));
    if (expiry_told_)
      status.attention.push_back(fmt::format("the roster has expired: {}", kRosterExpired));
    return status;
  }

  std::vector<int> rank_processes() const {
    std::vector<int> all;
    if (ranks_ != nullptr)
      for (const auto& rank : ranks_->status()) all.push_back(static_cast<int>(rank.pid));
    return all;
  }

  void stop_on_signals() {
    for (const int number : {SIGTERM, SIGINT, SIGUSR1}) signals_.add(number);
    signals_.async_wait([this](const boost::system::error_code& error, int) {
      if (error) return;
      stopped_ = true;
      gateway_->stop();
    });
  }

  Result<void> run_to_the_end() {
    TrafficMeter meter(earlier_traffic(*disk_, folder_, log_));
    Result<void> ended;
    loop_.spawn(end_with(*gateway_, loop_, ended));
    loop_.spawn(observe(meter));
    loop_.run();
    meter.sample(status(), clock_->now());
    note(meter);
    workers_.reset();  // their jobs use what the suspended coroutines own
    loop_.abandon();
    return ended;
  }

  std::vector<int> worker_cpus() const {
    const auto count = static_cast<std::size_t>(file_.gateway.workers);
    std::vector<int> cpus(count, -1);
    for (std::size_t i = 0; i < count && !file_.gateway.cpus.empty(); ++i)
      cpus[i] = file_.gateway.cpus[i % file_.gateway.cpus.size()];
    return cpus;
  }

  // A run is not lost for want of a port to watch it at.
  void start_metrics() {
    if (file_.gateway.metrics.empty()) return;
    auto server = MetricsServer::start(file_.gateway.metrics);
    if (server)
      metrics_ = std::move(*server);
    else
      log_.warning("metrics_not_served", {}, {{"why", server.error().text()}});
  }

  static inter::Task<void> end_with(inter::Gateway& gateway, inter::Loop& loop,
                                    Result<void>& ended) {
    ended = co_await gateway.run();
    loop.stop();
  }

  inter::Task<void> observe(TrafficMeter& meter) {
    for (auto noted = loop_.now();;) {
      auto status_now = status();
      const auto now = loop_.now();
      const bool waits = std::any_of(
          status_now.links.begin(), status_now.links.end(),
          [](const auto& link) { return link.state == "up" && !link.waiting_for.empty(); });
      meter.sample(status_now, now);
      if (metrics_ != nullptr) metrics_->update(std::move(status_now));
      if (now - noted >= kNoteEvery) {
        note(meter);
        noted = now;
      }
      follow_windows();
      alarm_expiry();
      // A link that is down waits for its session, which takes its time.
      if (!waits) co_await gateway_->news(now + kSampleIdle);
      co_await loop_.sleep_until(now + kSampleEvery);  // however often there are news
    }
  }

  // By the wall clock of this moment: whatever it jumps to counts.
  void follow_windows() {
    if (file_.gateway.windows.empty()) return;
    const auto now = rate_at(file_.gateway.windows, file_.gateway.rate_limit,
                             minute_of_day(clock_->unix_time()));
    const bool changed = !rate_now_ || rate_now_->rate_limit != now.rate_limit;
    rate_now_ = now;
    if (!changed) return;
    gateway_->set_rate_limit(static_cast<double>(now.rate_limit) / 8);
    log_.info("rate_limit", {}, {{"holds", rate_sentence(now)}});
  }

  void note(const TrafficMeter& meter) {
    const auto text = to_json(meter.total());
    if (auto written = replace_lazily(folder_.traffic(), text);
        !written && !std::exchange(traffic_lost_, true))
      log_.warning("traffic_not_written", {}, {{"why", written.error().text()}});
  }

  // Sessions that are up go on; none begins any more.
  void alarm_expiry() {
    if (expiry_told_ ||
        security::validity(roster_, clock_->unix_time()) != security::RosterValidity::expired)
      return;
    expiry_told_ = true;
    log_.alarm("roster_expired", {}, {{"effect", kRosterExpired}});
  }

  const SiteFile& file_;
  const security::Roster& roster_;
  const security::RosterSite& self_;
  RunFolder folder_;
  // In the order in which they need each other.
  std::unique_ptr<Disk> disk_;
  std::unique_ptr<Clock> clock_;
  std::unique_ptr<DiskLock> lock_;
  EventLog log_;
  std::optional<security::Identity> identity_;
  std::unique_ptr<security::Verifier> verifier_;
  inter::Loop loop_;
  std::unique_ptr<Workers> workers_;
  std::unique_ptr<inter::Wire> wire_;
  std::unique_ptr<inter::AttachServer> ranks_;  // outlives the gateway
  std::unique_ptr<inter::Gateway> gateway_;
  std::unique_ptr<MetricsServer> metrics_;
  boost::asio::signal_set signals_;
  std::optional<RateNow> rate_now_;  // nothing: it is always the same
  bool stopped_ = false;
  bool traffic_lost_ = false;
  bool expiry_told_ = false;
};

ExitCode run(const SiteArguments& arguments) {
  const auto warnings = security::harden_process();
  const auto sites = load_checked_sites(arguments.paths, arguments.overrides);
  if (!sites) return fail(sites.error());
  const auto& checked = sites->front();
  if (!checked.roster)
    return fail(Error{ErrorCode::invalid_argument,
                      fmt::format("{} has no site.roster: a site that trains alone has no gateway",
                                  checked.text.path)});
  const auto code = Site(checked).run(warnings);
  return code ? *code : fail(code.error());
}

}  // namespace

void add_gateway(Command program) {
  const auto command = program.subcommand(
      "gateway", "Run the gateway of a site (what launch starts): it speaks with the other sites");
  const auto arguments = std::make_shared<SiteArguments>();
  add_site_arguments(command, *arguments, HowManySites::one);
  command.footer(
      "Goes on from the state in run_dir. Ends when every site that can be reached has saved the "
      "last\nstep, or on SIGTERM. Exits with 2 when its files are at fault.\n\n"
      "Example:\n  isthmus gateway alpha.toml");
  command.runs([arguments] { return run(*arguments); });
}

}  // namespace isthmus::launcher

#include <fmt/format.h>
#include <signal.h>
#include <sys/random.h>

#include <CLI/CLI.hpp>
#include <boost/asio/signal_set.hpp>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/disk.h"
#include "base/event_log.h"
#include "base/random.h"
#include "base/workers.h"
#include "inter/attach_server.h"
#include "inter/gateway.h"
#include "inter/loop.h"
#include "inter/zmq_wire.h"
#include "launcher/command.h"
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

constexpr Nanoseconds kSampleEvery = 100 * kMillisecond;
constexpr int kSamplesPerNote = 50;  // between two writes of the traffic file

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
  options.public_key = identity.public_part().curve_key;
  options.secret_key = identity.curve_secret();
  options.listen = file.gateway.listen;
  options.has_address = !self.gateways.front().address.empty();
  for (const auto& site : roster.sites)
    if (site.id != self.id)
      options.peers.push_back({.id = {.site = site.id, .index = 0},
                               .name = site.name,
                               .key = site.gateways.front().curve_key,
                               .address = site.gateways.front().address});
  return options;
}

Result<Random> secret_random() {
  std::uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) != sizeof seed)
    return error_of_errno(errno, "the system gives no randomness");
  return Random(seed);
}

Traffic earlier_traffic(const Disk& disk, const RunFolder& folder) {
  constexpr std::size_t kBytesMax = std::size_t{1} << 20;
  const auto bytes = read_file(disk, folder.traffic(), kBytesMax);
  if (!bytes) return {};
  auto traffic =
      parse_traffic(std::string_view(reinterpret_cast<const char*>(bytes->data()), bytes->size()));
  return traffic ? std::move(*traffic) : Traffic{};  // only the report is poorer for it
}

// Everything that is real, wired together, and run until the end.
class Site {
 public:
  explicit Site(const CheckedSite& checked)
      : file_(checked.file()),
        roster_(*checked.roster),
        folder_(file_.site.run_dir),
        disk_(make_system_disk()),
        clock_(make_system_clock()),
        log_(*clock_, file_.site.name) {}

  Result<ExitCode> run() {
    const auto warnings = security::harden_process();
    ISTHMUS_CHECK(disk_->make_folders(folder_.path()));
    ISTHMUS_TRY(const auto lock, lock_run());
    ISTHMUS_TRY(auto events, make_file_sink(folder_.events()));
    log_.add(std::move(events));
    log_.add(make_terminal_sink(2, Severity::info));
    for (const auto& warning : warnings)
      log_.warning("process_not_hardened", {}, {{"why", warning.text()}});
    ISTHMUS_CHECK(security::admit_roster(*disk_, folder_.path(),
                                         {.epoch = roster_.epoch, .digest = roster_.digest}));
    ISTHMUS_TRY(const auto identity, security::Identity::load(file_.site.identity));
    ISTHMUS_TRY(Random random, secret_random());
    const auto* self = roster_.find(file_.site.name);

    inter::Loop loop(*clock_);
    const auto workers = make_thread_workers(
        [&loop](std::function<void()> done) { loop.post(std::move(done)); }, worker_cpus());
    ISTHMUS_TRY(const auto wire,
                inter::make_zmq_wire(loop, log_, wire_options(file_, roster_, *self, identity)));
    const auto verifier = security::make_verifier(roster_);
    inter::GatewayOptions options;
    options.sync = sync_options(file_.sync);
    options.folder = folder_.outer();
    options.rate_limit_bytes_per_second = static_cast<double>(file_.gateway.rate_limit) / 8;
    options.straggler_wait = file_.sync.straggler_wait;
    std::function<std::vector<int>()> rank_processes = [] { return std::vector<int>(); };
    ISTHMUS_TRY(options.at_point,
                make_kill_point(folder_.path(), [&rank_processes] { return rank_processes(); }));
    inter::Gateway gateway({.loop = loop,
                            .wire = *wire,
                            .disk = *disk_,
                            .workers = *workers,
                            .log = log_,
                            .random = random,
                            .signer = identity,
                            .verifier = *verifier},
                           roster_, self->id, std::move(options));
    inter::AttachOptions attach;
    attach.memory_bytes_max = static_cast<std::uint64_t>(file_.gateway.memory);
    inter::AttachServer ranks(
        loop, log_, folder_.socket(), gateway, [&gateway] { return gateway.status(); }, attach);
    rank_processes = [&ranks] {
      std::vector<int> all;
      for (const auto& rank : ranks.status()) all.push_back(static_cast<int>(rank.pid));
      return all;
    };
    gateway.serve(ranks);
    ISTHMUS_CHECK(ranks.listen());
    start_metrics();

    boost::asio::signal_set signals(loop.io(), SIGTERM, SIGINT, SIGUSR1);
    signals.async_wait([this, &gateway](const boost::system::error_code& error, int) {
      if (error) return;
      stopped_ = true;
      gateway.stop();
    });
    TrafficMeter meter(earlier_traffic(*disk_, folder_));
    Result<void> ended;
    loop.spawn(end_with(gateway, loop, ended));
    loop.spawn(observe(gateway, loop, meter));
    loop.run();
    meter.sample(gateway.status(), clock_->now());
    note(meter);
    loop.abandon();
    if (!ended) return ended.error();
    return stopped_ && !gateway.finished() ? ExitCode::stopped : ExitCode::done;
  }

 private:
  Result<std::unique_ptr<DiskLock>> lock_run() {
    auto lock = disk_->lock(folder_.lock());
    if (!lock && lock.error().code == ErrorCode::busy)
      return Error{ErrorCode::busy,
                   fmt::format("another gateway already runs in {}", folder_.path()), lock.error()};
    return lock;
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

  inter::Task<void> observe(inter::Gateway& gateway, inter::Loop& loop, TrafficMeter& meter) {
    for (int samples = 1;; ++samples) {
      co_await loop.sleep(kSampleEvery);
      auto status = gateway.status();
      meter.sample(status, clock_->now());
      if (metrics_ != nullptr) metrics_->update(std::move(status));
      if (samples % kSamplesPerNote == 0) note(meter);
      alarm_expiry();
    }
  }

  void note(const TrafficMeter& meter) {
    const auto text = to_json(meter.total());
    if (auto written = replace_file(*disk_, folder_.traffic(), std::as_bytes(std::span(text)));
        !written && !std::exchange(traffic_lost_, true))
      log_.warning("traffic_not_written", {}, {{"why", written.error().text()}});
  }

  // Sessions that are up go on; none begins any more.
  void alarm_expiry() {
    if (expiry_told_ ||
        security::validity(roster_, clock_->unix_time()) != security::RosterValidity::expired)
      return;
    expiry_told_ = true;
    log_.alarm(
        "roster_expired", {},
        {{"effect", "sessions go on, but none begins; ask the operator for a newer roster"}});
  }

  const SiteFile& file_;
  const security::Roster& roster_;
  RunFolder folder_;
  std::unique_ptr<Disk> disk_;
  std::unique_ptr<Clock> clock_;
  EventLog log_;
  std::unique_ptr<MetricsServer> metrics_;
  bool stopped_ = false;
  bool traffic_lost_ = false;
  bool expiry_told_ = false;
};

ExitCode run(const SiteArguments& arguments) {
  const auto sites = load_checked_sites(arguments.paths, arguments.overrides);
  if (!sites) return fail(sites.error());
  const auto& checked = sites->front();
  if (!checked.roster)
    return fail(Error{ErrorCode::invalid_argument,
                      fmt::format("{} has no site.roster: a site that trains alone has no gateway",
                                  checked.text.path)});
  const auto code = Site(checked).run();
  return code ? *code : fail(code.error());
}

}  // namespace

void add_gateway(CLI::App& program, Action& action) {
  auto* command = program.add_subcommand(
      "gateway", "Run the gateway of a site (what launch starts): it speaks with the other sites");
  const auto arguments = std::make_shared<SiteArguments>();
  add_site_arguments(*command, *arguments, HowManySites::one);
  command->footer(
      "Goes on from the state in run_dir. Ends when every site that can be reached has saved the "
      "last\nstep, or on SIGTERM. Exits with 2 when its files are at fault.\n\n"
      "Example:\n  isthmus gateway alpha.toml");
  command->callback([arguments, &action] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace isthmus::launcher

#include "tests/bench/bench_site.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/clock.h"
#include "base/disk.h"
#include "base/event_log.h"
#include "base/large_vector.h"
#include "base/machine_memory.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "base/workers.h"
#include "kernels/stream_copy.h"

namespace isthmus::bench {

using namespace inter;  // what is measured here

void give_up(std::string_view why) {
  fmt::print(stderr, "{}: {}\n", ::program_invocation_short_name, why);
  std::_Exit(1);
}

pid_t fork_child(int signal) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) give_up(fmt::format("cannot start a process: {}", std::strerror(errno)));
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, signal);
    if (::getppid() != parent) ::_exit(1);  // it ended before the line above
  }
  return child;
}

void end_with_parent() { ::prctl(PR_SET_PDEATHSIG, SIGKILL); }

void end_on_interrupt() { std::signal(SIGINT, SIG_DFL); }

ModelLayout layout_of(std::uint64_t parameters) {
  constexpr std::int64_t kColumns = 1024, kRowsMax = 4096;
  std::vector<TensorInfo> tensors;
  const auto add = [&](Shape shape) {
    tensors.push_back({fmt::format("layer.{:04}", tensors.size()), std::move(shape), 0});
  };
  const auto elements = static_cast<std::int64_t>(parameters);
  for (auto rows = elements / kColumns; rows > 0;) {
    const auto here = std::min(rows, kRowsMax);
    add(Shape{here, kColumns});
    rows -= here;
  }
  if (const auto rest = elements % kColumns; rest > 0) add(Shape{rest});
  return value_of(ModelLayout::make(std::move(tensors)));
}

Result<void> check_memory(std::uint64_t parameters, std::uint64_t sites) {
  // The gateway's state and feedback; the ranks' progress, parameters and memory.
  constexpr std::uint64_t kBytesAtLeast = 12 + 12;  // of each parameter
  const auto bytes = kBytesAtLeast * parameters * sites;
  if (bytes <= machine_memory_bytes()) return {};
  return Error{ErrorCode::invalid_argument,
               fmt::format("--parameters {}: {} sites need {} GB at least, and this machine has {}",
                           parameters, sites, bytes / 1'000'000'000,
                           machine_memory_bytes() / 1'000'000'000)};
}

std::vector<float> inner_progress(std::uint64_t count, std::uint64_t seed) {
  constexpr std::uint64_t kRow = 1024;
  constexpr std::uint64_t kDrawn = 1 << 20;  // to draw all takes longer than to measure
  const Random random(seed);
  std::vector<float> drawn(std::min(count, kDrawn));
  for (std::uint64_t i = 0; i < drawn.size(); ++i)
    drawn[i] = static_cast<float>(1e-3 * random.normal_at(i));
  std::vector<float> values(count);
  for (std::uint64_t row = 0; row * kRow < count; ++row) {
    const auto spread =
        static_cast<float>(std::exp(0.5 * random.normal_at((std::uint64_t{1} << 40) + row)));
    for (auto i = row * kRow; i < std::min(count, (row + 1) * kRow); ++i)
      values[i] = spread * drawn[i % kDrawn];
  }
  return values;
}

RankMemory::RankMemory(std::uint64_t elements) : state_(elements) {
  auto areas = std::make_shared<inter::RankPieces>();
  areas->add(0, state_);
  areas_ = std::move(areas);
}

std::shared_ptr<inter::StateDraft> RankMemory::draft() {
  if (draft_) draft_->close();
  return draft_ = std::make_shared<inter::RankDraft>(areas_);
}

void RankMemory::publish(const inter::Published& state) {
  const auto draft = std::exchange(draft_, nullptr);
  if (draft) draft->close();
  if (!draft || state.draft != draft) kernels::stream_copy(state.parameters, state_);
}

namespace {

std::string made_in(const std::string& parent, std::string_view name) {
  std::error_code failed;
  const auto folder =
      parent.empty() ? std::filesystem::temp_directory_path(failed).string() : parent;
  if (failed) give_up("there is no folder for temporary files ($TMPDIR); name one with --folder");
  auto path = fmt::format("{}/{}.XXXXXX", folder, name);
  if (::mkdtemp(path.data()) == nullptr)
    give_up(fmt::format("cannot make a folder in {}: {}; name another one with --folder", folder,
                        std::strerror(errno)));
  return path;
}

}  // namespace

TemporaryPlace::TemporaryPlace(const std::string& parent, std::string_view name)
    : path_(made_in(parent, name)) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) give_up("no pipe");
  life_ = ends[1];
  remover_ = ::fork();
  if (remover_ != 0) {
    ::close(ends[0]);
    return;
  }
  ::setsid();  // a terminal's Ctrl-C is not for it
  ::close(ends[1]);
  for (const int inherited : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::close(inherited);
  char nothing = 0;
  while (::read(ends[0], &nothing, 1) < 0 && errno == EINTR) {
  }
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  std::_Exit(0);
}

TemporaryPlace::~TemporaryPlace() {
  ::close(life_);
  ::waitpid(remover_, nullptr, 0);
}

void say_what_is_on(const Report& report) {
  if (!report.for_programs()) return;
  for (const auto* what : {"TLS of chunks", "BLAKE2s of chunks", "Ed25519 of eight chunks",
                           "zstd where it pays", "XXH3-128 of leaves", "synced writes"})
    report.row(fmt::format("on: {}", what), 1, "1");
}

BenchSite site_on_own_cpu(const LoopbackFederation& federation, std::size_t self,
                          std::uint64_t parameters) {
  const auto cpus = available_cpus();
  const int cpu = cpus[self % cpus.size()];
  pin_this_thread(cpu);
  return {.federation = federation,
          .self = self,
          .parameters = parameters,
          .options = {},
          .congestion_control = {},
          .cpus = {cpu}};
}

SyncOptions sync_of(const std::string& codec, const std::string& outer, std::uint64_t outer_steps,
                    std::uint64_t sites) {
  SyncOptions sync;
  sync.outer_steps = outer_steps;
  sync.outer.kind = outer == "nesterov" ? OuterRuleKind::nesterov : OuterRuleKind::average;
  sync.codec = value_of(compress::parse_codec(codec));
  sync.min_sites = static_cast<std::uint32_t>(sites);
  return sync;
}

namespace {

// A gateway waits until its disk has room again; nobody waits for a benchmark's. Each of them has
// said why; hear_all says once what to do.
void end_without_disk(const Event& event) {
  if (event.id == "state_not_saved" || event.id == "disk_failed") std::_Exit(1);
}

Task<void> run_gateway(Gateway& gateway, Loop& loop, Result<void>& ended) {
  ended = co_await gateway.run();
  loop.stop();
}

}  // namespace

std::uint64_t run_bench_site(BenchSite site, const MakeRanks& make_ranks) {
  const auto& roster = site.federation.roster;
  const auto clock = make_system_clock();
  const auto disk = make_system_disk();
  EventLog log(*clock, roster.sites[site.self].name);
  log.add(make_terminal_sink(2, Severity::alarm));
  log.add(make_callback_sink(end_without_disk));
  Loop loop(*clock);
  auto workers = make_thread_workers(
      [&loop](std::function<void()> done) { loop.post(std::move(done)); }, site.cpus);
  auto wire_options = site.federation.wire_options(site.self);
  if (!site.congestion_control.empty()) wire_options.congestion_control = site.congestion_control;
  const auto wire = value_of(make_zmq_wire(loop, log, wire_options));
  const auto verifier = security::make_verifier(roster);
  std::unique_ptr<Ranks> ranks;  // until the gateway has gone
  Gateway gateway({.loop = loop,
                   .wire = *wire,
                   .disk = *disk,
                   .workers = *workers,
                   .log = log,
                   .random = Random(site.self + 1),
                   .signer = site.federation.identities[site.self],
                   .verifier = *verifier},
                  roster, roster.sites[site.self].id, std::move(site.options));
  const auto layout = layout_of(site.parameters);
  ranks = make_ranks(loop, gateway);
  gateway.serve(*ranks);
  loop.post([&] {
    check(gateway.attached(layout));
    LargeVector<float> initial;
    initial.resize(layout.elements());
    gateway.offer_initial(std::move(initial));
  });
  Result<void> ended;
  loop.spawn(run_gateway(gateway, loop, ended));
  loop.run();
  check(ended);
  workers.reset();  // their jobs use what the suspended coroutines own
  std::uint64_t sent = 0;
  for (const auto& other : roster.sites) sent += wire->bytes_sent({other.id, 0});
  loop.abandon();
  return sent;
}

}  // namespace isthmus::bench

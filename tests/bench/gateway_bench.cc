// gateway_bench: what a CPU-second of gateways buys. Two gateways, a process each, with real keys,
// real ZeroMQ on loopback and a real disk, exchange the contributions of synthetic ranks, step
// after step:
//
//   rate = f32 bytes that both sites contributed / CPU-seconds of both processes
//
// without what the synthetic ranks themselves take. Then each stage by itself, on one thread, in
// f32 bytes per CPU-second, and what they add up to: the rate of gateways that do nothing else.
//
//   gateway_bench --parameters 16000000 --folder /var/tmp --json
#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/disk.h"
#include "base/event_log.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "base/workers.h"
#include "inter/gateway.h"
#include "inter/loop.h"
#include "tests/bench/command_line.h"
#include "tests/bench/report.h"
#include "tests/bench/seconds.h"
#include "tests/inter/loopback_federation.h"

namespace isthmus::bench {
namespace {

using namespace inter;  // what is measured here

constexpr std::uint64_t kWarmSteps = 2;  // buffers, files and windows grow in the first

struct Options {
  std::uint64_t parameters = 16'000'000;
  std::uint64_t steps = 6;
  std::string codec = "int8";
  std::string outer = "average";
  std::string folder;
  bool json = false;
};

[[noreturn]] void give_up(const std::string& why) {
  fmt::print(stderr, "gateway_bench: {}\n", why);
  std::_Exit(1);
}
template <class T>
T value_of(Result<T> result) {
  if (!result) give_up(result.error().text());
  return std::move(*result);
}
void check(const Result<void>& result) {
  if (!result) give_up(result.error().text());
}

SyncOptions sync_of(const Options& options) {
  SyncOptions sync;
  sync.outer_steps = kWarmSteps + options.steps;
  sync.outer.kind = options.outer == "nesterov" ? OuterRuleKind::nesterov : OuterRuleKind::average;
  sync.codec = value_of(compress::parse_codec(options.codec));
  sync.min_sites = 2;
  return sync;
}

// Matrices of 1024 columns, as a model has them.
ModelLayout layout_of(std::uint64_t parameters) {
  constexpr std::int64_t kColumns = 1024, kRowsMax = 4096;
  std::vector<TensorInfo> tensors;
  auto rows = std::max<std::int64_t>(1, static_cast<std::int64_t>(parameters) / kColumns);
  while (rows > 0) {
    const auto here = std::min(rows, kRowsMax);
    tensors.push_back({fmt::format("layer.{:04}", tensors.size()), Shape{here, kColumns}, 0});
    rows -= here;
  }
  return value_of(ModelLayout::make(std::move(tensors)));
}

// How far inner steps went: normal, with a spread of its own for each row.
std::vector<float> inner_progress(std::uint64_t count, std::uint64_t seed) {
  const Random random(seed);
  std::vector<float> values(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const double spread = std::exp(0.5 * random.normal_at((std::uint64_t{1} << 40) + i / 1024));
    values[i] = static_cast<float>(1e-3 * spread * random.normal_at(i));
  }
  return values;
}

// --- Two gateways

struct Figures {
  double cpu_seconds = 0;  // of the process in the measured steps, without the synthetic ranks
  double wall_seconds = 0;
  double rank_seconds = 0;
  std::uint64_t wire_bytes = 0;  // sent, all steps
  bool finished = false;
};

// Ranks that contribute the moment a state is published.
class SyntheticRanks final : public Ranks {
 public:
  SyntheticRanks(Loop& loop, Gateway& gateway, std::vector<float> progress)
      : loop_(loop), gateway_(gateway), progress_(std::move(progress)) {}

  bool reading() const override { return false; }
  bool all_took() const override { return true; }
  void forget() override {}
  void publish(const Published& state) override {
    if (state.step == kWarmSteps) {
      began_cpu_ = process_seconds();
      began_wall_ = wall_seconds();
      rank_seconds_ = 0;
    }
    if (state.final_step) {
      figures_.cpu_seconds = process_seconds() - began_cpu_ - rank_seconds_;
      figures_.rank_seconds = rank_seconds_;
      figures_.wall_seconds = wall_seconds() - began_wall_;
      figures_.finished = true;
      return;
    }
    if (state.contribution_open) return;
    const double before = thread_seconds();
    std::vector<float> parameters(state.parameters.begin(), state.parameters.end());
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] -= progress_[i];
    rank_seconds_ += thread_seconds() - before;
    loop_.call_after(0, [this, step = state.step + 1, given = std::move(parameters)]() mutable {
      check(gateway_.contribute(step, std::move(given), 1000));
    });
  }
  void refuse(const Error& why) override { give_up(why.text()); }
  std::vector<RankStatus> status() const override { return {}; }

  const Figures& figures() const { return figures_; }

 private:
  Loop& loop_;
  Gateway& gateway_;
  std::vector<float> progress_;
  double began_cpu_ = 0, began_wall_ = 0, rank_seconds_ = 0;
  Figures figures_;
};

Task<void> run_gateway(Gateway& gateway, Loop& loop, Result<void>& ended) {
  ended = co_await gateway.run();
  loop.stop();
}

Figures run_site(const LoopbackFederation& federation, std::size_t self, const Options& options,
                 const std::string& folder) {
  const auto cpus = available_cpus();
  const int cpu = cpus[self % cpus.size()];
  pin_this_thread(cpu);  // and all threads that it makes
  const auto clock = make_system_clock();
  const auto disk = make_system_disk();
  EventLog log(*clock, federation.roster.sites[self].name);
  log.add(make_terminal_sink(2, Severity::alarm));
  Loop loop(*clock);
  auto workers = make_thread_workers(
      [&loop](std::function<void()> done) { loop.post(std::move(done)); }, {cpu});
  const auto wire = value_of(make_zmq_wire(loop, log, federation.wire_options(self)));
  const auto verifier = security::make_verifier(federation.roster);
  GatewayOptions gateway_options;
  gateway_options.sync = sync_of(options);
  gateway_options.folder = folder;
  std::optional<SyntheticRanks> ranks;  // until the gateway has gone
  Gateway gateway({.loop = loop,
                   .wire = *wire,
                   .disk = *disk,
                   .workers = *workers,
                   .log = log,
                   .random = Random(self + 1),
                   .signer = federation.identities[self],
                   .verifier = *verifier},
                  federation.roster, federation.roster.sites[self].id, std::move(gateway_options));
  const auto layout = layout_of(options.parameters);
  ranks.emplace(loop, gateway, inner_progress(layout.elements(), self + 10));
  gateway.serve(*ranks);
  loop.post([&] {
    check(gateway.attached(layout));
    gateway.offer_initial(std::vector<float>(layout.elements()));
  });
  Result<void> ended;
  loop.spawn(run_gateway(gateway, loop, ended));
  loop.run();
  check(ended);
  workers.reset();  // their jobs use what the suspended coroutines own
  auto figures = ranks->figures();
  figures.wire_bytes = wire->bytes_sent({federation.roster.sites[1 - self].id, 0});
  loop.abandon();
  return figures;
}

std::vector<Figures> run_federation(const Options& options, const std::string& folder) {
  const auto federation = make_loopback_federation(2);
  std::vector<std::pair<pid_t, int>> children;
  for (std::size_t self = 0; self < 2; ++self) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) give_up("no pipe");
    const pid_t child = ::fork();
    if (child < 0) give_up("no process");
    if (child == 0) {
      const auto figures = run_site(federation, self, options, fmt::format("{}/{}", folder, self));
      const bool told = ::write(ends[1], &figures, sizeof figures) == sizeof figures;
      std::_Exit(told ? 0 : 1);
    }
    ::close(ends[1]);
    children.emplace_back(child, ends[0]);
  }
  std::vector<Figures> all(2);
  bool good = true;
  for (std::size_t self = 0; self < 2; ++self) {
    const auto [child, end] = children[self];
    good &= ::read(end, &all[self], sizeof all[self]) == sizeof all[self] && all[self].finished;
    ::waitpid(child, nullptr, 0);
    ::close(end);
  }
  if (!good) give_up("a gateway did not finish: what it said is above");
  return all;
}

// --- Each stage by itself

class Stages {
 public:
  Stages(const Options& options, std::string folder, const Report& report)
      : report_(report),
        folder_(std::move(folder)),
        sync_(sync_of(options)),
        layout_(layout_of(options.parameters)),
        plan_(std::make_shared<const ChunkPlan>(layout_, 0, sync_.chunk_elements, sync_.codec)),
        disk_(make_system_disk()),
        store_(*disk_, folder_),
        f32_bytes_(4.0 * static_cast<double>(layout_.elements())) {
    pin_this_thread(available_cpus().front());
    check(disk_->make_folders(folder_ + "/contributions"));
  }

  // CPU-seconds that one f32 byte contributed by each of both sites costs one gateway.
  double run() {
    const auto n = layout_.elements();
    state_.agreed.assign(n, 0.0F);
    if (sync_.outer.has_momentum()) state_.momentum.resize(n);
    feedback_.residual = inner_progress(n, 1);
    const auto progress = inner_progress(n, 2);
    auto parameters = progress;
    const auto carried = feedback_.residual;
    std::vector<Bytes> payloads(plan_->chunks());
    each_chunk("code: gradient, feedback, codec, zstd", 1, [&](std::uint32_t i) {
      payloads[i] =
          value_of(code_chunk(*plan_, i, state_.agreed, carried, parameters, feedback_.residual));
    });

    const Open open = plan_->announce({}, 1000, {}, 0);
    own_ = std::make_unique<Contribution>(plan_, sign_open(open), open);
    each_chunk("seal: BLAKE2b, Ed25519", 1, [&](std::uint32_t i) {
      const auto hash = chunk_hash(own_->transfer(), i, payloads[i]);
      auto sealed = seal_chunk(federation_.identities[0], hash, payloads[i]);
      own_->add(i, std::make_shared<const Bytes>(std::move(sealed)), hash);
    });
    // Our own, and the peer's.
    auto file = value_of(store_.contributions().create(1, own_->announcement()));
    each_chunk("write contributions", 2,
               [&](std::uint32_t i) { check(file->add(i, *own_->chunk(i).bytes)); });
    check(file->sync());
    transfer();
    const auto verifier = security::make_verifier(federation_.roster);
    each_chunk("check: BLAKE2b, Ed25519, zstd, codec", 1, [&](std::uint32_t i) {
      value_of(check_chunk(*plan_, *verifier, 1, own_->transfer(), i, *own_->chunk(i).bytes));
    });
    const std::vector<float> weights = {0.5F, 0.5F};
    const std::vector<const Contribution*> parts = {own_.get(), own_.get()};
    std::vector<std::vector<float>> aggregates(plan_->chunks());
    each_chunk("reduce: zstd, codec, sum of two", 1, [&](std::uint32_t i) {
      aggregates[i].resize(plan_->elements(i));
      check(reduce_chunk(*plan_, i, weights, parts, aggregates[i]));
    });
    each_chunk("outer step", 1, [&](std::uint32_t i) {
      outer_step_chunk(*plan_, i, sync_.outer, aggregates[i], state_);
    });
    stage("leaf hashes: XXH3-128", 1, [&] { root_ = state_root(layout_, state_); });
    stage("write feedback, synced", 1, [&] { check(store_.write_feedback(feedback_)); });
    stage("write state, synced", 1, [&] {
      const auto state_file = store_.begin_state(state_, root_);
      check(state_file ? Result<void>() : state_file.error());
      for (Result<bool> more = true; more && *more;) {
        more = (*state_file)->write_slice();
        check(more ? Result<void>() : more.error());
      }
    });
    return seconds_per_byte_;
  }

 private:
  Signed sign_open(const Open& open) const {
    return sign(federation_.identities[0], 1, MessageType::open, encode(open));
  }

  // `times`: how often a gateway does this for each f32 byte of one site.
  template <class Body>
  void stage(std::string_view name, int times, const Body& body) {
    const double before = thread_seconds();
    body();
    note(name, times, thread_seconds() - before);
  }
  template <class Body>
  void each_chunk(std::string_view name, int times, const Body& body) {
    stage(name, times, [&] {
      for (std::uint32_t i = 0; i < plan_->chunks(); ++i) body(i);
    });
  }
  void note(std::string_view name, int times, double seconds) {
    report_.row(name, f32_bytes_ / seconds * 1e-9, "GB/s");
    seconds_per_byte_ += times * seconds / f32_bytes_;
  }

  // Both ends in this process, CURVE on both: what one gateway pays to send its own and to receive
  // the peer's.
  void transfer() {
    class End final : public WireReceiver {
     public:
      void on_message(GatewayId, Lane lane, ConnectionId, std::span<const std::byte>) override {
        received += lane == Lane::bulk;
      }
      void on_up(GatewayId, Lane lane, ConnectionId) override { up |= lane == Lane::bulk; }
      void on_down(GatewayId, Lane, ConnectionId) override {}
      void on_writable(GatewayId, Lane) override { writable = true; }
      bool up = false, writable = true;
      std::uint32_t received = 0;
    };
    const auto clock = make_system_clock();
    EventLog log(*clock, "gateway_bench");
    Loop loop(*clock);
    std::array<End, 2> ends;
    std::array<std::unique_ptr<Wire>, 2> wires;
    for (std::size_t i = 0; i < 2; ++i) {
      wires[i] = value_of(make_zmq_wire(loop, log, federation_.wire_options(i)));
      wires[i]->receive_with(ends[i]);
    }
    const auto turn = [&] {
      if (!loop.run_ready()) ::usleep(50);
    };
    while (!ends[0].up || !ends[1].up) turn();
    const double before = process_seconds();
    for (std::uint32_t next = 0; ends[1].received < plan_->chunks();) {
      while (next < plan_->chunks() && ends[0].writable) {
        if (wires[0]->send({2, 0}, Lane::bulk, *own_->chunk(next).bytes))
          ++next;
        else
          ends[0].writable = false;
      }
      turn();
    }
    note("send and receive: ZeroMQ, CURVE", 1, process_seconds() - before);
  }

  const Report& report_;
  std::string folder_;
  SyncOptions sync_;
  ModelLayout layout_;
  std::shared_ptr<const ChunkPlan> plan_;
  std::unique_ptr<Disk> disk_;
  OuterStore store_;
  double f32_bytes_;
  LoopbackFederation federation_ = make_loopback_federation(2);
  OuterState state_;
  security::Digest root_;
  Feedback feedback_;
  std::unique_ptr<Contribution> own_;
  double seconds_per_byte_ = 0;
};

void run(const Options& options) {
  const Report report(options.json);
  auto place =
      (options.folder.empty() ? std::filesystem::temp_directory_path().string() : options.folder) +
      "/gateway_bench.XXXXXX";
  if (::mkdtemp(place.data()) == nullptr) give_up("cannot make a folder like " + place);
  struct Cleaner {
    std::string folder;
    ~Cleaner() {
      std::error_code ignored;
      std::filesystem::remove_all(folder, ignored);
    }
  } cleaner{place};

  const auto elements = layout_of(options.parameters).elements();
  report.heading(
      fmt::format("two gateways on loopback, {} parameters, {} steps after {}\n"
                  "  on: CURVE, BLAKE2b and Ed25519 of each chunk, zstd, XXH3-128 of each leaf, "
                  "contributions,\n  feedback and state written and synced in {}",
                  elements, options.steps, kWarmSteps, place));
  // For programs, what the heading says.
  if (options.json)
    for (const auto* what : {"CURVE", "BLAKE2b of chunks", "Ed25519 of chunks", "zstd",
                             "XXH3-128 of leaves", "synced writes"})
      report.row(fmt::format("on: {}", what), 1, "1");
  const auto figures = run_federation(options, place);
  const double cpu = figures[0].cpu_seconds + figures[1].cpu_seconds;
  const double wall = std::max(figures[0].wall_seconds, figures[1].wall_seconds);
  const double contributed =
      2.0 * 4.0 * static_cast<double>(elements) * static_cast<double>(options.steps);
  report.row("f32 contributed by both / CPU-second of both", contributed / cpu * 1e-9, "GB/s");
  report.row("outer step, wall clock", wall / static_cast<double>(options.steps), "s");
  report.row("CPU of both gateways, of one core", cpu / wall, "1");
  report.row("bytes on the wire / parameter",
             static_cast<double>(figures[0].wire_bytes) / static_cast<double>(elements) /
                 static_cast<double>(options.steps + kWarmSteps),
             "B");

  report.heading("each stage by itself, f32 / CPU-second of one thread");
  const double seconds_per_byte = Stages(options, place + "/stages", report).run();
  report.row("all stages, as often as a gateway has them", 1 / seconds_per_byte * 1e-9, "GB/s");
}

}  // namespace
}  // namespace isthmus::bench

int main(int argc, char** argv) {
  isthmus::bench::Options options;
  isthmus::bench::CommandLine line(
      "What a CPU-second of two gateways on loopback buys, and each stage by itself.",
      options.json);
  line.number("--parameters", options.parameters, 1024, std::uint64_t{1} << 32, "of the model");
  line.number("--steps", options.steps, 1, 10'000, "outer steps that are measured");
  line.choice("--codec", options.codec, {"none", "bf16", "int8"}, "of the pseudo-gradient");
  line.choice("--outer", options.outer, {"average", "nesterov"}, "the outer optimizer");
  line.text("--folder", options.folder, "for the gateways' files (default: the system's)");
  line.parse(argc, argv);
  isthmus::bench::run(options);
  return 0;
}

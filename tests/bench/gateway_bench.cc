// gateway_bench: what a CPU-second of gateways buys. Two gateways, a process each, with real keys,
// the real wire on loopback and a real disk, exchange the contributions of synthetic ranks, step
// after step:
//
//   rate = f32 bytes that both sites contributed / CPU-seconds of both processes
//
// without what the synthetic ranks themselves take. Then each stage by itself, on one thread, in
// f32 bytes per CPU-second, beside what this core can do at most of what the stage cannot do
// without (core_limits.h); and what they add up to: the rate of gateways that do nothing else.
// What is synced is also given in bytes per second of the wall clock, for which a disk makes it
// wait.
//
//   gateway_bench --parameters 16000000 --folder /var/tmp --json
#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/counted.h"
#include "base/disk.h"
#include "base/event_log.h"
#include "base/thread_pool.h"
#include "base/workers.h"
#include "inter/gateway.h"
#include "inter/loop.h"
#include "inter/step_computation.h"
#include "tests/bench/bench_site.h"
#include "tests/bench/command_line.h"
#include "tests/bench/core_limits.h"
#include "tests/bench/report.h"
#include "tests/bench/seconds.h"
#include "tests/inter/loopback_federation.h"
#include "tests/inter/written_feedback.h"

namespace isthmus::bench {
namespace {

using namespace inter;  // what is measured here

constexpr std::uint64_t kSites = 2;
constexpr std::uint64_t kWarmSteps = 2;  // buffers, files and windows grow in the first

struct Options {
  std::uint64_t parameters = 16'000'000;
  std::uint64_t steps = 6;
  std::string codec = "int8";
  std::string outer = "average";
  std::string folder;
  bool json = false;
};

SyncOptions rules_of(const Options& options) {
  return sync_of(options.codec, options.outer, kWarmSteps + options.steps, kSites);
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
  SyntheticRanks(Loop& loop, Gateway& gateway, std::vector<float> progress, Figures& figures)
      : loop_(loop),
        gateway_(gateway),
        progress_(std::move(progress)),
        memory_(progress_.size()),
        figures_(figures) {
    parameters_.resize(progress_.size());
  }

  bool reading() const override { return false; }
  bool all_took() const override { return true; }
  void forget() override {}
  std::shared_ptr<StateDraft> draft() override { return memory_.draft(); }
  void publish(const Published& state) override {
    memory_.publish(state);
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
    const auto agreed = memory_.parameters();
    for (std::size_t i = 0; i < agreed.size(); ++i) parameters_[i] = agreed[i] - progress_[i];
    auto values = std::make_shared<ValuesInPlace>(parameters_);
    rank_seconds_ += thread_seconds() - before;
    loop_.call_after(0, [this, step = state.step + 1, given = std::move(values)] {
      check(gateway_.contribute(step, given, 1000));
    });
  }
  void refuse(const Error& why) override { give_up(why.text()); }
  std::vector<RankStatus> status() const override { return {}; }

 private:
  Loop& loop_;
  Gateway& gateway_;
  std::vector<float> progress_;
  RankMemory memory_;
  LargeVector<float> parameters_;
  double began_cpu_ = 0, began_wall_ = 0, rank_seconds_ = 0;
  Figures& figures_;
};

Figures run_site(const LoopbackFederation& federation, std::size_t self, const Options& options,
                 const std::string& folder) {
  auto site = site_on_own_cpu(federation, self, options.parameters);
  site.options.sync = rules_of(options);
  site.options.folder = folder;
  const auto elements = layout_of(options.parameters).elements();
  Figures figures;
  const auto sent = run_bench_site(std::move(site), [&](Loop& loop, Gateway& gateway) {
    return std::make_unique<SyntheticRanks>(loop, gateway, inner_progress(elements, self + 10),
                                            figures);
  });
  figures.wire_bytes = sent;
  return figures;
}

std::vector<Figures> run_federation(const Options& options, const std::string& folder) {
  const auto federation = make_loopback_federation(kSites);
  std::vector<int> ends_of_children;
  std::vector<pid_t> children;
  for (std::size_t self = 0; self < kSites; ++self) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) give_up("no pipe");
    const pid_t child = fork_child();
    if (child == 0) {
      const auto figures = run_site(federation, self, options, fmt::format("{}/{}", folder, self));
      const bool told = ::write(ends[1], &figures, sizeof figures) == sizeof figures;
      std::_Exit(told ? 0 : 1);
    }
    ::close(ends[1]);
    children.push_back(child);
    ends_of_children.push_back(ends[0]);
  }
  constexpr double kPatience = std::numeric_limits<double>::infinity();
  auto all = hear_all<Figures>(ends_of_children, kPatience, "");
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  for (const int end : ends_of_children) ::close(end);
  for (const auto& figures : all)
    if (!figures.finished) give_up("a gateway ended before its last step");
  return all;
}

// --- Each stage by itself

class Stages {
 public:
  Stages(const Options& options, std::string folder, const Report& report)
      : report_(report),
        folder_(std::move(folder)),
        sync_(rules_of(options)),
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
    const auto cut_off = inner_progress(n, 1);
    feedback_.residual.assign(cut_off.begin(), cut_off.end());
    const auto progress = inner_progress(n, 2);
    auto parameters = progress;
    const auto carried = feedback_.residual;
    std::vector<std::optional<UnsealedChunk>> made(plan_->chunks());
    const ValuesInVector values(std::move(parameters));
    each_chunk("code: gradient, feedback, codec", 1, [&](std::uint32_t i) {
      made[i] = value_of(code_chunk(*plan_, i, state_.agreed, carried, values, feedback_.residual));
    });
    double coded_bytes = 0;
    for (const auto& chunk : made) coded_bytes += static_cast<double>(chunk->frames().size());
    bound("code: bound by memory", limits_.memory(3 * f32_bytes_, f32_bytes_ + coded_bytes));

    const Open open = plan_->announce({}, 1000, {}, 0);
    own_ = std::make_shared<Contribution>(plan_, sign_open(open), open);
    std::vector<PackedChunk> group;
    each_chunk("seal: BLAKE2s, Ed25519", 1, [&](std::uint32_t i) {
      group.push_back(pack_chunk(*plan_, own_->transfer(), i, *made[i], false));
      if (group.size() < kSealedTogether && i + 1 < plan_->chunks()) return;
      auto first = i + 1 - static_cast<std::uint32_t>(group.size());
      for (auto& sealed : seal_chunks(federation_.identities[0], group))
        own_->add(first++, std::move(sealed));
      group.clear();
    });
    bound("seal: bound by BLAKE2s", limits_.blake2s(coded_bytes));
    // Our own, and the peer's.
    auto file = value_of(store_.contributions().create(1, own_->announcement()));
    std::vector<StoredChunk> written;
    each_chunk("write contributions", 2, [&](std::uint32_t i) {
      written.emplace_back(i, own_->sealed(i));
      if (written.size() < kSealedTogether && i + 1 < plan_->chunks()) return;
      check(file->add(written));
      written.clear();
    });
    bound("write contributions: bound by memory", limits_.memory(coded_bytes, coded_bytes));
    check(file->sync());
    transfer();
    // Into the kernel, and out of it.
    bound("send and receive: bound by AES-GCM and two copies",
          limits_.aes_gcm(coded_bytes) + limits_.memory(2 * coded_bytes, 2 * coded_bytes));
    const auto verifier = security::make_verifier(federation_.roster);
    each_chunk("check: BLAKE2s, Ed25519", 1, [&](std::uint32_t i) {
      value_of(
          check_chunk(*plan_, *verifier, own_->seals(), 1, own_->transfer(), i, own_->sealed(i)));
    });
    bound("check: bound by BLAKE2s", limits_.blake2s(coded_bytes));
    StepComputation step(layout_, plan_, sync_.outer, std::make_shared<const OuterState>(state_),
                         {own_, own_}, {0.5F, 0.5F}, state_);
    each_chunk("step: decode and sum two, outer step, leaf hashes", 1, [&](std::uint32_t i) {
      check(step.compute(i, {made[i]->coded(), made[i]->coded()}));
    });
    state_ = std::move(step.after());
    root_ = state_root(step.leaves());
    const double state_bytes =
        4.0 * static_cast<double>(state_.agreed.size() + state_.momentum.size());
    bound("step: bound by memory and XXH3-128",
          limits_.memory(2 * coded_bytes + state_bytes, state_bytes) + limits_.xxh3(state_bytes));
    synced_stage("write feedback, synced", f32_bytes_,
                 [&] { check(write_feedback(store_, feedback_)); });
    synced_stage("write state, synced", state_bytes, [&] {
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
  // Big blocks go to the disk directly, so the CPU hardly knows of them: how long the disk takes is
  // another figure.
  template <class Body>
  void synced_stage(const std::string& name, double bytes, const Body& body) {
    const double before = wall_seconds();
    stage(name + ": CPU alone", 1, body);
    report_.row(name + ": bytes / second", bytes / (wall_seconds() - before) * 1e-9, "GB/s");
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

  // The same of what has to be done at least.
  void bound(std::string_view name, double seconds) {
    report_.row(name, f32_bytes_ / seconds * 1e-9, "GB/s");
  }

  // Both ends in this process, TLS on both: what one gateway pays to send its own and to receive
  // the peer's.
  void transfer() {
    class End final : public WireReceiver {
     public:
      void on_message(GatewayId, Lane lane, ConnectionId, const SharedBytes&) override {
        received += lane == Lane::bulk;
      }
      void on_up(GatewayId, Lane lane, ConnectionId) override { up |= lane == Lane::bulk; }
      void on_down(GatewayId, Lane, ConnectionId) override {}
      void on_writable(GatewayId, Lane, ConnectionId) override { writable = true; }
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
        if (wires[0]->send({2, 0}, Lane::bulk, {{}, own_->sealed(next)}))
          ++next;
        else
          ends[0].writable = false;
      }
      turn();
    }
    note("send and receive: TLS", 1, process_seconds() - before);
  }

  const Report& report_;
  CoreLimits limits_;
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
  std::shared_ptr<Contribution> own_;
  double seconds_per_byte_ = 0;
};

void run(const Options& options) {
  const Report report(options.json, {{"parameters", options.parameters},
                                     {"codec", options.codec},
                                     {"outer", options.outer},
                                     {"steps", options.steps}});
  const TemporaryPlace temporary(options.folder, "gateway_bench");
  const auto& place = temporary.path();
  report.heading(fmt::format(
      "two gateways on loopback, {} parameters, codec {}, outer {}, {} after {}, in {}\n  on: {}",
      options.parameters, options.codec, options.outer, counted(options.steps, "step"), kWarmSteps,
      place, kWhatIsOn));
  say_what_is_on(report);
  const auto figures = run_federation(options, place);
  const double cpu = figures[0].cpu_seconds + figures[1].cpu_seconds;
  const double wall = std::max(figures[0].wall_seconds, figures[1].wall_seconds);
  const auto elements = static_cast<double>(options.parameters);
  const double contributed = 2.0 * 4.0 * elements * static_cast<double>(options.steps);
  report.row("f32 contributed by both / CPU-second of both", contributed / cpu * 1e-9, "GB/s");
  report.row("outer step, wall clock", wall / static_cast<double>(options.steps), "s");
  report.row("CPU of both gateways, of one core", cpu / wall, "1");
  report.row("bytes on the wire / parameter",
             static_cast<double>(figures[0].wire_bytes) / elements /
                 static_cast<double>(options.steps + kWarmSteps),
             "B");

  report.heading("each stage by itself, f32 / CPU-second of one thread");
  const double seconds_per_byte = Stages(options, place + "/stages", report).run();
  report.row("all stages, as often as a gateway has them", 1 / seconds_per_byte * 1e-9, "GB/s");
}

}  // namespace
}  // namespace isthmus::bench

int main(int argc, char** argv) {
  isthmus::bench::end_on_interrupt();
  isthmus::bench::Options options;
  isthmus::bench::CommandLine line(
      "What a CPU-second of two gateways on loopback buys, and each stage by itself.",
      options.json);
  line.number("--parameters", options.parameters, 1024, std::uint64_t{1} << 32, "of the model");
  line.number("--steps", options.steps, 1, 10'000, "outer steps that are measured");
  line.choice("--codec", options.codec, {"none", "bf16", "int8"}, "of the pseudo-gradient");
  line.choice("--outer", options.outer, {"average", "nesterov"}, "the outer optimizer");
  line.folder("--folder", options.folder, "for the gateways' files (default: the system's)");
  line.ends("Status: 0 measured, 1 not, 2 bad usage, 130 interrupted (Ctrl-C).");
  line.parse(argc, argv);
  if (const auto fits = isthmus::bench::check_memory(options.parameters, isthmus::bench::kSites);
      !fits)
    isthmus::bench::bad_usage(fits.error().text());
  isthmus::bench::run(options);
  return isthmus::bench::after_output(0);
}

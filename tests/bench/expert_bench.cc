// expert_bench: a feed-forward layer of experts against a dense one that does as many products for
// each token: forward and backward of one layer, with the router, the permutation and the sum.
//
//   expert_bench --hidden 384 --dense 1024 --width 512 --precision bf16 --loads skewed
//
// Both run in turn, in one process; the time of a layer is that of its ops, without the norm before
// and what makes a loss of it. Tokens are made so that experts have exactly the loads asked for.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/thread_pool.h"
#include "kernels/bf16.h"
#include "runtime/backward.h"
#include "runtime/executor.h"
#include "tests/bench/command_line.h"
#include "tests/bench/median.h"
#include "tests/bench/report.h"
#include "tests/bench/seconds.h"

namespace isthmus::bench {
namespace {

using namespace runtime;  // what is measured here

constexpr std::int64_t kExperts = 8;
constexpr std::int64_t kTopK = 2;
constexpr std::int64_t kVocabulary = 16;  // of the head, which is there for its gradient

struct Options {
  std::int64_t hidden = 384;
  std::int64_t dense = 1024;
  std::int64_t width = 512;
  std::int64_t batch = 4;
  std::int64_t sequence = 256;
  std::string precision = "fp32";
  std::string loads = "balanced";
  std::size_t threads = 2;
  double seconds = 10;
  bool json = false;

  BatchShape shape() const {
    return {.micro_batch = batch,
            .sequence = sequence,
            .precision = precision == "bf16" ? Precision::bf16 : Precision::f32};
  }
};

// Shares of all choices, of each expert.
std::array<double, kExperts> shares_of(const std::string& loads) {
  if (loads == "balanced") return {0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125};
  return {0.30, 0.20, 0.15, 0.10, 0.10, 0.05, 0.05, 0.05};
}

Program layer_program(const Options& options, bool experts) {
  ProgramBuilder b(options.shape(), true);
  const auto hidden = options.hidden;
  const auto table = b.matrix({{"table", options.batch * options.sequence}}, hidden);
  const auto norm_weight = b.norm_weight("norm", hidden);
  const auto x = b.embed(table);
  const auto h = b.norm(x, norm_weight, 1e-5);
  ValueId y = kNoValue;
  if (experts) {
    const auto router = b.matrix({{"gate", kExperts}}, hidden);
    const auto up = b.matrix({{"up", kExperts * 2 * options.width}}, hidden);
    const auto down = b.matrix({{"down", kExperts * hidden}}, options.width);
    Routing routing;
    routing.top_k = kTopK;
    routing.normalised = true;
    routing.layers = 1;
    y = b.experts(h, router, up, down, routing);
  } else {
    const auto up = b.matrix({{"up", 2 * options.dense}}, hidden);
    const auto down = b.matrix({{"down", hidden}}, options.dense);
    y = b.linear_to_residual(b.glu(b.linear(h, up)), down);
  }
  const auto head = b.matrix({{"head", kVocabulary}}, hidden);
  const auto last = b.norm_weight("last norm", hidden);
  b.head_loss(b.norm(b.add(x, y), last, 1e-5), head);
  return with_backward(b.take());
}

bool is_of_layer(OpKind kind) {
  using enum OpKind;
  constexpr std::array kKinds{linear, glu, route, permute, grouped_linear, expert_glu, combine};
  return std::ranges::find(kKinds, kind) != kKinds.end();
}

// One layer with parameters of its own.
class Layer {
 public:
  Layer(const Options& options, bool experts, CpuDevice& device) {
    auto program = layer_program(options, experts);
    const Random random(1);
    for (const auto& parameter : program.parameters) {
      const auto elements =
          static_cast<std::size_t>(program.value(parameter.master).shape.elements());
      auto& values = memory_.emplace_back(elements * sizeof(float));
      auto floats = values.of<float>();
      for (std::size_t i = 0; i < elements; ++i)
        floats[i] = 0.05F * static_cast<float>(random.normal_at(i));
      places_.masters.push_back(floats.data());
      const auto& name = parameter.canonical.front().name;
      if (name == "table") choose_experts(options, floats);
      if (name == "gate") {  // expert e looks at element e alone
        std::ranges::fill(floats, 0.0F);
        for (std::int64_t e = 0; e < kExperts; ++e)
          floats[static_cast<std::size_t>(e * options.hidden + e)] = 1;
      }
      auto& copies = memory_.emplace_back(elements * sizeof(bf16_t));
      kernels::float_to_bf16(floats, copies.of<bf16_t>());
      places_.operands.push_back(copies.of<bf16_t>().data());
      places_.gradients.push_back(
          memory_.emplace_back(elements * sizeof(float)).of<float>().data());
    }
    executor_ = std::make_unique<StandaloneExecutor>(std::move(program), places_, device);
    auto& run = executor_->executor;
    for (std::size_t i = 0; i < run.tokens().size(); ++i) {
      run.tokens()[i] = static_cast<std::int32_t>(i);
      run.targets()[i] = static_cast<std::int32_t>(i % kVocabulary);
    }
    run.measure(true);
  }

  // Seconds of the layer's ops in one run.
  double run() {
    const auto before = seconds();
    executor_->executor.run(MicroBatch::first);
    return seconds() - before;
  }
  std::span<const std::int32_t> loads() { return executor_->executor.loads(); }
  const CpuExecutor& executor() const { return executor_->executor; }

 private:
  double seconds() const {
    const auto& ops = executor_->executor.program().ops;
    double sum = 0;
    for (std::size_t i = 0; i < ops.size(); ++i)
      if (is_of_layer(ops[i].kind)) sum += executor_->executor.seconds_by_op()[i];
    return sum;
  }

  // Each token the two experts that lack most of their share.
  static void choose_experts(const Options& options, std::span<float> table) {
    const auto tokens = options.batch * options.sequence;
    auto left = shares_of(options.loads);
    for (auto& share : left) share *= static_cast<double>(tokens * kTopK);
    for (std::int64_t t = 0; t < tokens; ++t) {
      auto* row = table.data() + t * options.hidden;
      std::fill_n(row, kExperts, 0.0F);
      for (std::int64_t j = 0; j < kTopK; ++j) {
        const auto most = std::ranges::max_element(left) - left.begin();
        row[most] = 1 + 0.1F * static_cast<float>(kTopK - j);
        left[static_cast<std::size_t>(most)] -= 1;
      }
    }
  }

  std::vector<AlignedMemory> memory_;
  ParameterPlaces places_;
  std::unique_ptr<StandaloneExecutor> executor_;
};

int run(const Options& options) {
  auto cpus = available_cpus();
  cpus.resize(options.threads, -1);
  ThreadPool pool(cpus);
  CpuDevice device(pool);
  Layer dense(options, false, device), experts(options, true, device);
  dense.run();
  experts.run();
  std::vector<double> of_dense, of_experts, ratios;
  const double end = wall_seconds() + options.seconds;
  do {
    of_dense.push_back(dense.run());
    of_experts.push_back(experts.run());
    ratios.push_back(of_experts.back() / of_dense.back());
  } while (wall_seconds() < end);
  const Report report(options.json, {{"hidden", options.hidden},
                                     {"dense_width", options.dense},
                                     {"expert_width", options.width},
                                     {"tokens", options.batch * options.sequence},
                                     {"precision", options.precision},
                                     {"loads", options.loads},
                                     {"threads", options.threads}});
  report.heading(fmt::format("hidden {}, {} against {} experts of {}, top {}, {}, {}",
                             options.hidden, options.dense, kExperts, options.width, kTopK,
                             options.precision, options.loads));
  const auto milliseconds = [](const std::vector<double>& all) { return 1e3 * median(all); };
  report.row("dense, forward and backward", milliseconds(of_dense), "ms");
  report.row("experts, forward and backward", milliseconds(of_experts), "ms");
  report.row("experts / dense, median of runs in turn", median(ratios), "1");
  if (report.for_programs()) return 0;
  std::string loads;
  for (const auto load : experts.loads().first(static_cast<std::size_t>(kExperts)))
    loads += fmt::format(" {}", load);
  report.heading(fmt::format("loads of the first sequence:{}", loads));
  for (const auto& op : op_times(experts.executor()))
    report.row(op.name, 1e3 * op.seconds / static_cast<double>(experts.executor().measured_runs()),
               "ms");
  report.heading("dense");
  for (const auto& op : op_times(dense.executor()))
    report.row(op.name, 1e3 * op.seconds / static_cast<double>(dense.executor().measured_runs()),
               "ms");
  return 0;
}

}  // namespace
}  // namespace isthmus::bench

int main(int argc, char** argv) {
  isthmus::bench::Options options;
  isthmus::bench::CommandLine line("A layer of experts against a dense one.", options.json);
  line.number("--hidden", options.hidden, 16, 1 << 16, "width of the residual stream");
  line.number("--dense", options.dense, 1, 1 << 20, "width of the dense SwiGLU");
  line.number("--width", options.width, 1, 1 << 20, "width of an expert");
  line.number("--batch", options.batch, 1, 1 << 20, "sequences");
  line.number("--sequence", options.sequence, 1, 1 << 20, "tokens of each");
  line.choice("--precision", options.precision, {"fp32", "bf16"}, "of activations and products");
  line.choice("--loads", options.loads, {"balanced", "skewed"},
              "equal, or 30/20/15/10/10/5/5/5 % of all choices");
  line.number("--threads", options.threads, 1, 1024, "compute threads, one per CPU");
  line.number("--seconds", options.seconds, 0, 86'400, "how long to measure");
  line.parse(argc, argv);
  return isthmus::bench::after_output(isthmus::bench::run(options));
}

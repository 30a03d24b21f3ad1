// precision_bench: whether a small Llama learns in bf16 as it does in f32: the loss on held-out
// text after a training in each, from equal weights on equal samples, for several seeds. In bf16
// the parameters stay f32 (the master weights); to compare, a third training rounds them to bf16
// after each update, as if they were kept so.
//
//   precision_bench --train runs/quickstart/data/en.bin --held-out runs/quickstart/data/en.held.bin
//
// It takes minutes, and its figures are of losses, not of time (docs/performance.md).
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/disk.h"
#include "base/thread_pool.h"
#include "kernels/bf16.h"
#include "runtime/byte_tokenizer.h"
#include "runtime/evaluate.h"
#include "runtime/micro_batches.h"
#include "runtime/model.h"
#include "tests/bench/command_line.h"
#include "tests/bench/report.h"

namespace isthmus::bench {
namespace {

using namespace runtime;  // what is measured here

struct Options {
  std::string train = "runs/quickstart/data/en.bin";
  std::string held_out = "runs/quickstart/data/en.held.bin";
  std::int64_t seeds = 5;
  std::int64_t steps = 300;
  double rate = 2e-3;
  std::size_t threads = 2;
  bool json = false;
};

struct Kind {
  const char* name;
  Precision precision;
  bool rounds_masters;
};
constexpr std::array<Kind, 3> kKinds = {{{"f32", Precision::f32, false},
                                         {"bf16, f32 master weights", Precision::bf16, false},
                                         {"bf16, bf16 master weights", Precision::bf16, true}}};

ModelConfig small_llama() {
  ModelConfig config;
  config.layers = 3;
  config.hidden = 96;
  config.heads = config.kv_heads = 4;
  config.ffn_width = 256;
  config.vocabulary = 260;
  config.sequence_max = 128;
  return config;
}

void round_parameters(Model& model) {
  for (float& value : model.parameters()) value = kernels::to_float(kernels::to_bf16(value));
  model.parameters_changed();
}

// The held-out loss in the end, in nats a token.
Result<double> train(const Options& options, const Kind& kind, std::uint64_t seed, Disk& disk,
                     ThreadPool& pool) {
  const BatchShape shape{.micro_batch = 8, .sequence = 128, .precision = kind.precision};
  ISTHMUS_TRY(const auto model, Model::create(small_llama(), shape, pool));
  ISTHMUS_TRY(const auto data, TextDataset::open(disk, {{options.train}}, shape.sequence, seed));
  model->initialise(seed);
  if (kind.rounds_masters) round_parameters(*model);
  const RateSchedule schedule{.peak = options.rate, .steps = options.steps};
  MicroBatches batches(data, shape, 0, 1, seed);
  for (std::int64_t step = 0; step < options.steps; ++step) {
    model->zero_gradients();
    ISTHMUS_CHECK(batches.read(static_cast<std::uint64_t>(step) * batches.samples(), 0));
    const auto loss = model->forward_backward(batches.tokens(), batches.targets());
    model->update({}, schedule.rate(step), loss.counted);
    if (kind.rounds_masters) round_parameters(*model);
  }
  ISTHMUS_TRY(const auto loss, held_out_loss(*model, *make_byte_tokenizer(), disk, options.held_out,
                                             {.sequences_max = 256}));
  return std::log(loss.perplexity);
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// Of a mean of these.
double standard_error(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += std::pow(value - mean(values), 2);
  const auto n = static_cast<double>(values.size());
  return std::sqrt(squares / (n - 1) / n);
}

Result<void> run(const Options& options) {
  auto cpus = available_cpus();
  cpus.resize(options.threads, -1);
  ThreadPool pool(cpus);
  const auto disk = make_system_disk();
  const Report report(options.json, {{"steps", options.steps}, {"rate", options.rate}});
  std::array<std::vector<double>, kKinds.size()> losses, differences;
  for (std::int64_t seed = 1; seed <= options.seeds; ++seed) {
    report.heading(fmt::format("seed {}, {} steps of 1,024 bytes, rate {}", seed, options.steps,
                               options.rate));
    for (std::size_t i = 0; i < kKinds.size(); ++i) {
      ISTHMUS_TRY(const double loss,
                  train(options, kKinds[i], static_cast<std::uint64_t>(seed), *disk, pool));
      losses[i].push_back(loss);
      differences[i].push_back(100 * (loss / losses[0].back() - 1));
      report.of({{"seed", seed}}).row(kKinds[i].name, loss, "nats");
    }
  }
  report.heading("all seeds: mean loss, and difference to f32 with its standard error");
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    report.row(kKinds[i].name, mean(losses[i]), "nats");
    if (i == 0) continue;
    report.row(fmt::format("{}, difference", kKinds[i].name), mean(differences[i]), "%");
    report.row(fmt::format("{}, standard error", kKinds[i].name), standard_error(differences[i]),
               "%");
  }
  return {};
}

}  // namespace
}  // namespace isthmus::bench

int main(int argc, char** argv) {
  isthmus::bench::Options options;
  isthmus::bench::CommandLine line("Learning in bf16 against learning in f32.", options.json);
  line.text("--train", options.train, "text to learn, as bytes");
  line.text("--held-out", options.held_out, "text to judge by");
  line.number("--seeds", options.seeds, 2, 1000, "trainings of each kind");
  line.number("--steps", options.steps, 1, 1'000'000, "inner steps of each");
  line.number("--rate", options.rate, 1e-8, 10, "learning rate after the warm-up");
  line.number("--threads", options.threads, 1, 1024, "compute threads, one per CPU");
  line.parse(argc, argv);
  const auto outcome = isthmus::bench::run(options);
  if (!outcome) fmt::print(stderr, "{}\n", outcome.error().text());
  return isthmus::bench::after_output(outcome ? 0 : 1);
}

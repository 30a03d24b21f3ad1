// trainer_bench: tokens per second of whole inner steps (forward, backward, clipping, AdamW) on
// random tokens, and where the time goes, by kind of op. One rank, no communication, no files.
//
//   trainer_bench --model 13.8M --precision bf16 --threads 2
//
// A step is one micro-batch. Tokens/s come from the median step, as in the PyTorch script it is
// compared with (docs/performance.md). The peak is the larger of what a loop of multiply-adds and
// what the fastest of the step's matrix products come to on the same threads.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

#include "base/random.h"
#include "base/thread_pool.h"
#include "kernels/gemm.h"
#include "kernels/multiply_peak.h"
#include "runtime/model.h"
#include "tests/bench/benched_model.h"
#include "tests/bench/command_line.h"
#include "tests/bench/gemms_alone.h"
#include "tests/bench/median.h"
#include "tests/bench/report.h"
#include "tests/bench/seconds.h"

namespace isthmus::bench {
namespace {

using namespace runtime;  // what is measured here

struct Options : BenchedModel {
  std::int64_t batch = 4;
  std::int64_t sequence = 256;
  double counted = 1;
  std::string recompute = "off";
  double seconds = 20;
  bool gemm_only = false;
  bool json = false;
};

struct Measured {
  std::vector<double> steps;            // seconds
  std::vector<double> updates;          // seconds of clipping and AdamW, per step
  std::vector<double> gemms;            // seconds of a step's matrix products alone
  double cpu_seconds = 0;               // of all threads, in all steps
  double loss = 0;                      // mean of the last step, in nats
  double step_flops = 0;                // of the model, in a step, on average
  double loop_peak = 0, gemm_peak = 0;  // FLOP/s

  double peak() const { return std::max(loop_peak, gemm_peak); }
};

class Trainer {
 public:
  Trainer(const Options& options, Model& model, ThreadPool& pool)
      : model_(model),
        pool_(pool),
        gemms_(model.gemms(), pool),
        gemm_only_(options.gemm_only),
        multiplied_(options.precision == "bf16" && kernels::bf16_gemm_is_native() ? DType::bf16
                                                                                  : DType::f32),
        tokens_(static_cast<std::size_t>(model.shape().tokens())),
        targets_(tokens_.size()),
        counted_(options.counted),
        seconds_(options.seconds) {}

  Measured run() {
    for (int i = 0; i < kWarmUp; ++i) {
      step();
      gemms_.run();
    }
    measured_ = {};
    model_.measure_ops(true);
    look_for_peak();
    const double end = wall_seconds() + seconds_;
    while (wall_seconds() < end || measured_.steps.size() < kStepsMin) {
      const double cpu_before = process_seconds();
      step();
      measured_.cpu_seconds += process_seconds() - cpu_before;
      if (gemm_only_) measured_.gemms.push_back(gemms_.run());
    }
    look_for_peak();
    return measured_;
  }

 private:
  static constexpr int kWarmUp = 3;
  static constexpr std::size_t kStepsMin = 5;
  static constexpr Nanoseconds kPeakTime = 300 * kMillisecond;

  void look_for_peak() {
    measured_.loop_peak = std::max(measured_.loop_peak,
                                   kernels::multiply_peak(pool_, multiplied_, *clock_, kPeakTime));
    measured_.gemm_peak = gemms_.best_flops_per_second();
  }
  void step() {
    const auto draw = [&] {
      return static_cast<std::int32_t>(
          random_.below(static_cast<std::uint64_t>(model_.config().vocabulary)));
    };
    std::generate(tokens_.begin(), tokens_.end(), draw);
    std::generate(targets_.begin(), targets_.end(), draw);
    for (auto& target : targets_)
      if (!random_.chance(counted_)) target = kIgnoredTarget;
    const double start = wall_seconds();
    model_.zero_gradients();
    const auto loss = model_.forward_backward(tokens_, targets_);
    const double computed = wall_seconds();
    model_.update({}, 1e-3, loss.counted);
    const double end = wall_seconds();
    measured_.steps.push_back(end - start);
    measured_.updates.push_back(end - computed);
    measured_.loss = loss.sum / static_cast<double>(std::max<std::int64_t>(1, loss.counted));
    const auto steps = static_cast<double>(measured_.steps.size());
    measured_.step_flops += (model_.flops(loss.counted) - measured_.step_flops) / steps;
  }

  Model& model_;
  ThreadPool& pool_;
  GemmsAlone gemms_;
  const bool gemm_only_;
  const DType multiplied_;
  std::vector<std::int32_t> tokens_, targets_;
  const double counted_;
  double seconds_;
  std::unique_ptr<Clock> clock_ = make_system_clock();
  Random random_{1};
  Measured measured_;
};

// The value below which this share of them lies.
double quantile(std::vector<double> values, double share) {
  const auto at = static_cast<std::size_t>(share * static_cast<double>(values.size()));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}
// What a machine that others use too does in a good moment.
double quarter(const std::vector<double>& values) { return quantile(values, 0.25); }

double sum(const std::vector<double>& values) {
  double total = 0;
  for (const double x : values) total += x;
  return total;
}

void report_json(const Options& o, const Model& model, const Measured& measured) {
  const Report report(true);
  const auto row = [&](std::string_view name, double value, std::string_view unit) {
    report.row(fmt::format("trainer_bench {} {}, {} threads, {} x {} tokens{}, recompute {}: {}",
                           o.model, o.precision, o.threads, o.batch, o.sequence,
                           o.counted < 1 ? fmt::format(", {:g} of the targets", o.counted) : "",
                           o.recompute, name),
               value, unit);
  };
  const auto steps = static_cast<double>(measured.steps.size());
  row("speed", static_cast<double>(model.shape().tokens()) / median(measured.steps), "tokens/s");
  row("step, 25th percentile", 1e3 * quarter(measured.steps), "ms");
  row("computes", measured.step_flops / median(measured.steps) / 1e9, "GFLOP/s");
  row("peak, loop", measured.loop_peak / 1e9, "GFLOP/s");
  row("peak, best product", measured.gemm_peak / 1e9, "GFLOP/s");
  row("share of peak", measured.step_flops / median(measured.steps) / measured.peak(), "1");
  if (!measured.gemms.empty()) {
    row("products alone, 25th percentile", 1e3 * quarter(measured.gemms), "ms/step");
    row("step / products alone", quarter(measured.steps) / quarter(measured.gemms), "1");
  }
  row("CPU time", 1e3 * measured.cpu_seconds / steps, "ms/step");
  row("memory", static_cast<double>(model.memory_bytes()), "bytes");
  for (const auto& time : model.op_times()) row(time.name, 1e3 * time.seconds / steps, "ms/step");
  row("clip and AdamW", 1e3 * sum(measured.updates) / steps, "ms/step");
}

void report_table(const Options& o, const Model& model, const Measured& measured) {
  const auto steps = static_cast<double>(measured.steps.size());
  const double step = sum(measured.steps) / steps;
  fmt::print(
      "model {}: {} parameters, {}, {} threads, batch {} x {} tokens, recompute {}, {:.0f} MiB\n",
      o.model, parameter_count(model.config()), o.precision, o.threads, o.batch, o.sequence,
      o.recompute, static_cast<double>(model.memory_bytes()) / (1 << 20));
  if (o.precision == "bf16" && !kernels::bf16_gemm_is_native())
    fmt::print(
        "this CPU multiplies faster in f32 than in bf16: bf16 is stored, f32 is multiplied\n");
  if (o.counted < 1) fmt::print("{:g} of the targets count\n", o.counted);
  fmt::print("{} steps, last loss {:.4f}\n\n", measured.steps.size(), measured.loss);
  fmt::print("{:<20} {:>6} {:>10} {:>7} {:>9} {:>7}\n", "op", "calls", "ms/step", "share",
             "GFLOP/s", "GB/s");
  double rest = step - sum(measured.updates) / steps;
  for (const auto& time : model.op_times()) {
    const double seconds = time.seconds / steps;
    const double multiplied = time.name.starts_with("head_loss") ? o.counted : 1;
    rest -= seconds;
    fmt::print("{:<20} {:>6.0f} {:>10.3f} {:>6.1f}% {:>9.1f} {:>7.1f}\n", time.name,
               static_cast<double>(time.calls) / steps, 1e3 * seconds, 100 * seconds / step,
               multiplied * time.flops / time.seconds / 1e9, time.bytes_moved / time.seconds / 1e9);
  }
  const auto print_part = [&](std::string_view name, double seconds) {
    fmt::print("{:<20} {:>6} {:>10.3f} {:>6.1f}%\n", name, 1, 1e3 * seconds, 100 * seconds / step);
  };
  print_part("clip and AdamW", sum(measured.updates) / steps);
  print_part("rest", rest);
  fmt::print("{:<20} {:>6} {:>10.3f}\n", "step (mean)", 1, 1e3 * step);
  // With one thread it shows what a step costs even where others use the CPU.
  fmt::print("{:<20} {:>6} {:>10.3f}\n\n", "CPU time", 1, 1e3 * measured.cpu_seconds / steps);
  fmt::print("{:.0f} tokens/s (median step {:.2f} ms, 25th percentile {:.2f} ms)\n",
             static_cast<double>(model.shape().tokens()) / median(measured.steps),
             1e3 * median(measured.steps), 1e3 * quarter(measured.steps));
  const double speed = measured.step_flops / median(measured.steps);
  fmt::print("{:.1f} GFLOP/s, {:.0f} % of the peak (multiply-adds {:.1f}, best product {:.1f})\n",
             speed / 1e9, 100 * speed / measured.peak(), measured.loop_peak / 1e9,
             measured.gemm_peak / 1e9);
  if (!measured.gemms.empty())
    fmt::print(
        "matrix products alone {:.2f} ms (25th percentile): a step takes {:.3f} times that\n",
        1e3 * quarter(measured.gemms), quarter(measured.steps) / quarter(measured.gemms));
}

int run(const Options& options) {
  ThreadPool pool(options.cpus());
  const auto model = options.create(options.batch, options.sequence, pool,
                                    options.recompute == "all" ? Recompute::all : Recompute::off);
  if (!model) return 1;
  const auto measured = Trainer(options, *model, pool).run();
  (options.json ? report_json : report_table)(options, *model, measured);
  return 0;
}

}  // namespace
}  // namespace isthmus::bench

int main(int argc, char** argv) {
  isthmus::bench::Options options;
  isthmus::bench::CommandLine line("Tokens per second of inner steps, and where the time goes.",
                                   options.json);
  options.ask(line);
  line.number("--batch", options.batch, 1, 1 << 20, "sequences per step");
  line.number("--sequence", options.sequence, 1, 1 << 20, "tokens per sequence");
  line.number("--counted", options.counted, 0, 1,
              "so many of the targets count: 1 of running text, less of completions or hidden "
              "tokens");
  line.choice("--recompute", options.recompute, {"off", "all"},
              "what of the activations is made again");
  line.number("--seconds", options.seconds, 0, 86'400, "how long to measure");
  line.flag("--gemm-only", options.gemm_only,
            "time the step's matrix products alone too, in turn with the steps");
  line.parse(argc, argv);
  return isthmus::bench::after_output(isthmus::bench::run(options));
}

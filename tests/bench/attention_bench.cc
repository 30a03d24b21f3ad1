// attention_bench: causal attention of one layer, forward and backward.
//
//   attention_bench --sequence 4096 --heads 8 --precision bf16
//
// Operations are counted where a query sees a key; what a rival computes beyond is its own loss.
#include <fmt/core.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/large_vector.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/bf16.h"
#include "tests/bench/command_line.h"
#include "tests/bench/median.h"
#include "tests/bench/report.h"
#include "tests/bench/seconds.h"

namespace isthmus::bench {
namespace {

using kernels::Rows;

struct Options {
  std::int64_t batch = 1;
  std::int64_t sequence = 4096;
  std::int64_t heads = 8;
  std::int64_t head_dim = 64;
  std::string precision = "fp32";
  std::size_t threads = 2;
  double seconds = 10;
  bool json = false;

  kernels::AttentionShape shape() const {
    kernels::AttentionShape shape;
    shape.batch = batch;
    shape.sequence = sequence;
    shape.heads = shape.kv_heads = heads;
    shape.head_dim = head_dim;
    shape.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
    return shape;
  }
  std::int64_t rows() const { return batch * sequence; }
  std::int64_t columns() const { return heads * head_dim; }
  // Of one product of a layer: of the five of backward, of the two of forward.
  double product_flops() const {
    const auto seen = static_cast<double>(sequence) * static_cast<double>(sequence + 1) / 2;
    return 2 * seen * static_cast<double>(batch * columns());
  }
};

// `count` matrices side by side, of small random numbers.
class Matrices {
 public:
  Matrices(const Options& options, std::int64_t count, std::uint64_t seed)
      : rows_(options.rows()),
        columns_(options.columns()),
        count_(count),
        dtype_(options.precision == "bf16" ? DType::bf16 : DType::f32),
        memory_(static_cast<std::size_t>(rows_ * columns_ * count) * size_of(dtype_)) {
    Random random(seed);
    const auto elements = memory_.size() / size_of(dtype_);
    for (std::size_t i = 0; i < elements; ++i) {
      const auto value = static_cast<float>(random.uniform() - 0.5);
      if (dtype_ == DType::bf16)
        reinterpret_cast<bf16_t*>(memory_.data())[i] = kernels::to_bf16(value);
      else
        reinterpret_cast<float*>(memory_.data())[i] = value;
    }
  }
  Rows operator[](std::int64_t i) {
    return Rows(memory_.data(), dtype_, rows_, columns_ * count_, columns_ * count_)
        .column_range(i * columns_, columns_);
  }

 private:
  std::int64_t rows_, columns_, count_;
  DType dtype_;
  LargeVector<std::byte> memory_;
};

int run(const Options& options) {
  auto cpus = available_cpus();
  cpus.resize(options.threads, -1);
  ThreadPool pool(cpus);
  const auto shape = options.shape();
  Matrices qkv(options, 3, 1), out(options, 1, 2), dout(options, 1, 3), dqkv(options, 3, 4);
  std::vector<float> log_sums(static_cast<std::size_t>(options.rows() * options.heads));
  LargeVector<std::byte> scratch(kernels::attention_scratch_bytes(shape, pool.workers()));
  std::vector<double> forward, backward, both;
  double end = 0;
  do {
    const double start = wall_seconds();
    kernels::attention_forward(pool, shape, qkv[0], qkv[1], qkv[2], {}, nullptr, out[0], log_sums,
                               scratch);
    const double between = wall_seconds();
    kernels::attention_backward(pool, shape, qkv[0], qkv[1], qkv[2], {}, nullptr, out[0], log_sums,
                                dout[0], dqkv[0], dqkv[1], dqkv[2], scratch);
    const double done = wall_seconds();
    if (end == 0) {  // the first time touches memory
      end = done + options.seconds;
      continue;
    }
    forward.push_back(between - start);
    backward.push_back(done - between);
    both.push_back(done - start);
  } while (forward.empty() || wall_seconds() < end);

  const Report report(options.json, {{"batch", options.batch},
                                     {"sequence", options.sequence},
                                     {"heads", options.heads},
                                     {"head_dim", options.head_dim},
                                     {"precision", options.precision},
                                     {"threads", options.threads}});
  report.heading(fmt::format("{} x {} tokens, {} heads of {}, {}", options.batch, options.sequence,
                             options.heads, options.head_dim, options.precision));
  const auto row = [&](const std::string& name, const std::vector<double>& times, int products) {
    report.row(name, 1e3 * median(times), "ms");
    report.row(name + ", speed", products * options.product_flops() / median(times) / 1e9,
               "GFLOP/s");
  };
  row("forward", forward, 2);
  row("backward", backward, 5);
  row("forward and backward", both, 7);
  return 0;
}

}  // namespace
}  // namespace isthmus::bench

int main(int argc, char** argv) {
  isthmus::bench::Options options;
  isthmus::bench::CommandLine line("Causal attention of one layer.", options.json);
  line.number("--batch", options.batch, 1, 1 << 16, "sequences");
  line.number("--sequence", options.sequence, 1, 1 << 17, "tokens of each");
  line.number("--heads", options.heads, 1, 1024, "of queries, and of keys");
  line.number("--head-dim", options.head_dim, 1, 1024, "elements of a head");
  line.choice("--precision", options.precision, {"fp32", "bf16"}, "of activations and products");
  line.number("--threads", options.threads, 1, 1024, "compute threads, one per CPU");
  line.number("--seconds", options.seconds, 0, 86'400, "how long to measure");
  line.parse(argc, argv);
  return isthmus::bench::after_output(isthmus::bench::run(options));
}

// codec_bench: how fast a worker encodes, decodes, compresses and hashes a contribution, and what
// each codec costs in bytes and accuracy. Rates are GB/s of the f32 parameters that went in (also
// where the stage itself touches fewer bytes), summed over the threads; hashes count their own
// bytes.
//
//   codec_bench [--json] [--elements N] [--threads T] [--file PATH]
//
// Data: normal draws whose spread differs from block to block; PATH, a file of little-endian f32
// (say, the difference of two checkpoints), is measured as well.

#include <array>
#include <atomic>
#include <barrier>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/disk.h"
#include "base/random.h"
#include "compress/codec.h"
#include "compress/zstd_stage.h"
#include "kernels/blake2s_columns.h"
#include "kernels/leaf_hash.h"
#include "security/hash.h"
#include "tests/bench/command_line.h"
#include "tests/bench/report.h"
#include "tests/bench/seconds.h"

namespace isthmus::bench {
namespace {

using compress::Codec;
using compress::CodecId;
using compress::ZstdStage;

constexpr std::size_t kFrameElements = std::size_t{1} << 18;  // as a leaf of outer state
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
constexpr double kSecondsPerFigure = 0.4;

struct Options {
  bool json = false;
  std::size_t elements = std::size_t{1} << 22;  // per thread
  std::size_t threads = 1;
  std::string file;
};

// One thread's contribution, cut into frames, with every buffer it needs.
class Bench {
 public:
  Bench(std::span<const float> values, CodecId id)
      : values_(values),
        codec_(compress::make_codec(id)),
        decoded_(values.size()),
        contributed_(values.size()),
        feedback_(values.size()),
        residual_(values.size()),
        coded_(codec_->encoded_bytes_max(values.size())),
        unpacked_(kChunkBytes) {
    encode();
    coded_too_ = coded_;
    for (std::size_t at = 0; at < coded_.size(); at += kChunkBytes)
      payloads_.emplace_back(ZstdStage::packed_bytes_max(chunk(at).size()));
    sizes_.resize(payloads_.size());
    pack();
  }

  void encode() {
    each_frame([&](std::size_t first, std::size_t count, std::span<std::byte> bytes) {
      require(codec_->encode(values_.subspan(first, count), bytes).has_value());
    });
  }
  void decode() {
    each_frame([&](std::size_t first, std::size_t count, std::span<std::byte> bytes) {
      require(codec_->decode(bytes, std::span(decoded_).subspan(first, count)).has_value());
    });
  }
  void pack() {
    for (std::size_t i = 0; i < payloads_.size(); ++i)
      sizes_[i] = zstd_.pack(chunk(i * kChunkBytes), payloads_[i]);
  }
  void unpack() {
    for (std::size_t i = 0; i < payloads_.size(); ++i) {
      const auto size = chunk(i * kChunkBytes).size();
      require(
          zstd_.unpack(std::span(payloads_[i]).first(sizes_[i]), std::span(unpacked_).first(size))
              .has_value());
    }
  }
  void blake2b() {
    for (std::size_t at = 0; at < coded_.size(); at += kChunkBytes)
      consume(std::to_integer<unsigned>(security::blake2b(chunk(at)).bytes[0]));
  }
  void blake2s() {
    for (std::size_t at = 0; at < coded_.size(); at += kChunkBytes) hash(chunk(at));
  }
  void xxh3() {
    const auto bytes = std::as_bytes(values_);
    for (std::size_t at = 0; at < bytes.size(); at += kChunkBytes)
      consume(static_cast<unsigned>(
          kernels::leaf_hash(bytes.subspan(at, std::min(kChunkBytes, bytes.size() - at))).low));
  }
  // Pseudo-gradient, feedback, codec and residual, as a gateway codes its chunks.
  void code() {
    each_tile([&](std::size_t at, std::size_t count, const Frame& frame) {
      const compress::Codec::Change change{
          .agreed = values_.subspan(at, count),
          .contributed = std::span<const float>(contributed_).subspan(at, count),
          .feedback = std::span<const float>(feedback_).subspan(at, count)};
      require(codec_
                  ->encode_change(change, at - frame.first, frame.count, frame.bytes,
                                  std::span(residual_).subspan(at, count))
                  .has_value());
    });
    std::swap(feedback_, residual_);
  }
  // All that a sender does to its pseudo-gradient before the bytes are sealed, without zstd, which
  // gateways leave out where it saves too little.
  void contribute() {
    code();
    blake2s();
  }
  // What an outer step makes of two contributions.
  void step_of_two() {
    std::array<float, compress::kTileElements> at_hand;
    each_tile([&](std::size_t at, std::size_t count, const Frame& frame) {
      const auto other = std::span<const std::byte>(coded_too_)
                             .subspan(static_cast<std::size_t>(frame.bytes.data() - coded_.data()),
                                      frame.bytes.size());
      const compress::Codec::WeightedFrame parts[] = {{frame.bytes, 0.5F}, {other, 0.5F}};
      const kernels::OuterStep step{.agreed = values_.subspan(at, count),
                                    .momentum = {},
                                    .next_agreed = std::span(residual_).subspan(at, count),
                                    .next_momentum = {},
                                    .agreed_at_hand = std::span(at_hand).first(count),
                                    .momentum_at_hand = {}};
      require(codec_->decode_step(parts, frame.count, at - frame.first, step).has_value());
      consume(std::bit_cast<unsigned>(at_hand[0]));
    });
  }

  std::size_t coded_bytes() const { return coded_.size(); }
  std::size_t packed_bytes() const {
    std::size_t sum = 0;
    for (const auto size : sizes_) sum += size;
    return sum;
  }
  // Norm of what the codec changed, by the norm of the values.
  double relative_error() {
    decode();
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      error += std::pow(double{decoded_[i]} - double{values_[i]}, 2);
      norm += std::pow(double{values_[i]}, 2);
    }
    return std::sqrt(error / norm);
  }

 private:
  static void require(bool ok) {
    if (ok) return;
    std::fputs("codec_bench: a stage failed on its own data (is the file finite f32?)\n", stderr);
    std::exit(1);
  }
  struct Frame {
    std::size_t first = 0, count = 0;  // values
    std::span<std::byte> bytes;
  };
  template <class Body>
  void each_tile(const Body& body) {
    each_frame([&](std::size_t first, std::size_t count, std::span<std::byte> bytes) {
      for (std::size_t at = 0; at < count; at += compress::kTileElements)
        body(first + at, std::min(compress::kTileElements, count - at), Frame{first, count, bytes});
    });
  }
  void hash(std::span<const std::byte> bytes) {
    consume(std::to_integer<unsigned>(kernels::blake2s_columns(bytes)[0]));
  }
  void consume(unsigned value) { sink_.fetch_xor(value, std::memory_order_relaxed); }
  std::span<std::byte> chunk(std::size_t at) {
    return std::span(coded_).subspan(at, std::min(kChunkBytes, coded_.size() - at));
  }
  template <class Body>
  void each_frame(const Body& body) {
    std::size_t at = 0;
    for (std::size_t first = 0; first < values_.size(); first += kFrameElements) {
      const auto count = std::min(kFrameElements, values_.size() - first);
      const auto bytes = codec_->encoded_bytes_max(count);
      body(first, count, std::span(coded_).subspan(at, bytes));
      at += bytes;
    }
  }

  std::span<const float> values_;
  std::unique_ptr<Codec> codec_;
  ZstdStage zstd_;
  std::vector<float> decoded_, contributed_, feedback_, residual_;
  Bytes coded_, coded_too_;  // of two sites
  Bytes unpacked_;
  std::vector<Bytes> payloads_;
  std::vector<std::size_t> sizes_;
  std::atomic<unsigned> sink_{0};
};

class Runner {
 public:
  Runner(std::span<const float> values, std::string label, const Options& options,
         const Report& report)
      : values_(values), label_(std::move(label)), threads_(options.threads), report_(report) {}

  void run() {
    for (const auto id : {CodecId::none, CodecId::bf16, CodecId::int8}) codec(id);
    prepare(CodecId::none);
    report_.heading(fmt::format("hashes, {} data, {} thread(s)", label_, threads_));
    rate("blake2b", &Bench::blake2b);
    rate("blake2s, by columns", &Bench::blake2s);
    rate("xxh3-128", &Bench::xxh3);
  }

 private:
  void codec(CodecId id) {
    prepare(id);
    const std::string name(to_string(id));
    report_.heading(fmt::format("{}, {} data, {} thread(s)", name, label_, threads_));
    rate(name + " encode", &Bench::encode);
    rate(name + " decode", &Bench::decode);
    rate(name + " zstd pack", &Bench::pack);
    rate(name + " zstd unpack", &Bench::unpack);
    rate(name + " code", &Bench::code);
    rate(name + " contribute", &Bench::contribute);
    rate(name + " step of two", &Bench::step_of_two);
    prepare(id);  // contribute has coded something else
    const auto f32_bytes = static_cast<double>(values_.size_bytes());
    auto& bench = *benches_.front();
    row(name + " ratio after codec", f32_bytes / static_cast<double>(bench.coded_bytes()), "x");
    row(name + " ratio after zstd", f32_bytes / static_cast<double>(bench.packed_bytes()), "x");
    row(name + " relative error", bench.relative_error(), "1");
  }

  void prepare(CodecId id) {
    benches_.clear();
    for (std::size_t i = 0; i < threads_; ++i)
      benches_.push_back(std::make_unique<Bench>(values_, id));
  }

  void row(const std::string& name, double value, std::string_view unit) {
    report_.row(fmt::format("{} {}", label_, name), value, unit);
  }

  // The best of several passes that all threads make together.
  void rate(const std::string& name, void (Bench::*stage)()) {
    double best = 1e30, spent = 0;
    std::atomic<bool> stop{false};
    std::barrier start(static_cast<std::ptrdiff_t>(threads_) + 1);
    std::barrier end(static_cast<std::ptrdiff_t>(threads_) + 1);
    std::vector<std::jthread> workers;
    for (auto& bench : benches_)
      workers.emplace_back([&, worker = bench.get()] {
        for (;;) {
          start.arrive_and_wait();
          if (stop) return;
          (worker->*stage)();
          end.arrive_and_wait();
        }
      });
    for (int pass = 0; spent < kSecondsPerFigure || pass < 3; ++pass) {
      const double begin = wall_seconds();
      start.arrive_and_wait();
      end.arrive_and_wait();
      const double seconds = wall_seconds() - begin;
      spent += seconds;
      best = std::min(best, seconds);
    }
    stop = true;
    start.arrive_and_wait();
    row(name, static_cast<double>(values_.size_bytes() * threads_) / best * 1e-9, "GB/s");
  }

  std::span<const float> values_;
  std::string label_;
  std::size_t threads_;
  const Report& report_;
  std::vector<std::unique_ptr<Bench>> benches_;
};

std::vector<float> normal_values(std::size_t count) {
  const Random random(1);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const double spread = std::exp(random.normal_at((1ULL << 40) + i / 4096)) * 1e-3;
    values[i] = static_cast<float>(random.normal_at(i) * spread);
  }
  return values;
}

Result<std::vector<float>> values_of_file(const std::string& path) {
  ISTHMUS_TRY(const auto bytes, read_file(*make_system_disk(), path, std::uint64_t{1} << 34));
  if (bytes.empty() || bytes.size() % sizeof(float) != 0)
    return Error{ErrorCode::invalid_argument, fmt::format("{} is not a file of f32 values", path)};
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

int run(const Options& options) {
  const Report report(options.json);
  if (options.file.empty()) {
    Runner(normal_values(options.elements), "normal", options, report).run();
    return 0;
  }
  const auto values = values_of_file(options.file);
  if (!values) {
    fmt::print(stderr, "codec_bench: {}\n", values.error().text());
    return 2;
  }
  Runner(normal_values(options.elements), "normal", options, report).run();
  Runner(*values, "file", options, report).run();
  return 0;
}

}  // namespace
}  // namespace isthmus::bench

int main(int argc, char** argv) {
  isthmus::bench::Options options;
  isthmus::bench::CommandLine line(
      "How fast a contribution is encoded, decoded, compressed and hashed.", options.json);
  line.number("--elements", options.elements, 1, std::size_t{1} << 32, "per thread");
  line.number("--threads", options.threads, 1, 1024, "that work at once");
  line.text("--file", options.file, "of little-endian f32, measured as well");
  line.parse(argc, argv);
  return isthmus::bench::after_output(isthmus::bench::run(options));
}

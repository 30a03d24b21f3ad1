// A site that trains alone, for tests that kill it: `train_once RUN_DIR TEXT STEPS [mpi]
// [rows=N] [micro_batches=N] [every=N] [threads=N] [family=NAME] [bf16] [lora]`. SIGTERM stops it,
// as a user would; exit code 0 when it is finished, 3 when it stopped. With mpi, one of several
// ranks under mpirun. RUN_DIR/reads has a byte for each time that it read from the text to train.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/family.h"
#include "runtime/masking.h"
#include "runtime/text_tokens.h"
#include "runtime/trainer.h"
#include "tests/base/passing_disk.h"
#include "tests/runtime/small_model.h"

namespace {

using namespace isthmus;
using namespace isthmus::runtime;

std::atomic<bool> stop{false};

int fail(const Error& error) {
  std::fprintf(stderr, "%s\n", error.text().c_str());
  return 1;
}

// Counts by the length of a file how often those that it opens are read from.
class CountingDisk final : public PassingDisk {
 public:
  CountingDisk(std::shared_ptr<Disk> disk, const std::string& path)
      : PassingDisk(std::move(disk)), count_(path) {}

  Result<std::unique_ptr<File>> open(const std::string& path, Open how) override {
    ISTHMUS_TRY(auto file, PassingDisk::open(path, how));
    return std::make_unique<Counted>(std::move(file), count_);
  }
  // From now on.
  void begin() { count_.is_on = true; }

 private:
  struct Count {
    explicit Count(const std::string& path) : file(path, std::ios::trunc) {}
    std::ofstream file;
    bool is_on = false;
  };
  class Counted final : public PassingFile {
   public:
    Counted(std::unique_ptr<File> file, Count& count)
        : PassingFile(std::move(file)), count_(count) {}
    Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
      if (count_.is_on) count_.file << '.' << std::flush;
      return PassingFile::read_at(offset, out);
    }

   private:
    Count& count_;
  };

  Count count_;
};

int run(int argc, char** argv) {
  const std::string run_dir = argv[1], text = argv[2];
  TrainOptions options{.steps = std::atoi(argv[3]),
                       .checkpoint_folder = run_dir + "/checkpoints",
                       .checkpoint_steps = 4,
                       .metrics_path = run_dir + "/metrics.jsonl"};
  options.schedule = {.peak = 5e-3, .warmup_steps = 5, .steps = 60};
  auto config = small_config();
  auto shape = small_shape();
  FineTuning tuning;
  bool is_mpi = false;
  std::size_t threads = 1;
  for (int i = 4; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto number = std::atoi(argument.substr(argument.find('=') + 1).c_str());
    if (argument == "mpi") is_mpi = true;
    if (argument == "lora") tuning.lora = {.rank = 4, .alpha = 8, .targets = {"*_proj"}};
    if (argument == "bf16") shape.precision = Precision::bf16;
    if (argument.starts_with("family=")) config = small_config(argument.substr(7));
    if (argument.starts_with("rows=")) shape.micro_batch = number;
    if (argument.starts_with("micro_batches=")) options.micro_batches = number;
    if (argument.starts_with("threads=")) threads = static_cast<std::size_t>(number);
    if (argument.starts_with("every=")) options.checkpoint_steps = number;
  }
  if (config.experts > 0) shape.router = {.capacity = 1, .balance = 0.02, .z = 0.001};
  const std::shared_ptr<Disk> disk = make_system_disk();
  CountingDisk counting(disk, run_dir + "/reads");
  const auto clock = make_system_clock();
  EventLog log(*clock, "alpha");
  log.add(make_terminal_sink(2, Severity::info));
  auto world = is_mpi
                   ? intra::make_mpi_communicator()
                   : Result<std::unique_ptr<intra::Communicator>>(intra::make_alone_communicator());
  if (!world) return fail(world.error());
  const auto data = TextDataset::open(counting, {{text}}, shape.sequence, options.seed);
  if (!data) return fail(data.error());
  counting.begin();
  ThreadPool pool(std::vector<int>(threads, -1));
  auto model = Model::create(config, shape, pool, tuning);
  if (!model) return fail(model.error());
  (*model)->initialise(options.seed);
  const Masking masking({.token = kMaskToken, .vocabulary = kTextVocabulary});
  const bool hides = objective_of(config) == Objective::masked_tokens;
  const auto outcome = train({.model = **model,
                              .data = *data,
                              .masking = hides ? &masking : nullptr,
                              .world = **world,
                              .disk = *disk,
                              .clock = *clock,
                              .log = log,
                              .stop = &stop},
                             options);
  if (!outcome) return fail(outcome.error());
  if (const auto status = (*world)->close(); !status) return fail(status.error());
  return outcome->finished ? 0 : 3;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  std::signal(SIGTERM, [](int) { stop = true; });
  return run(argc, argv);
}

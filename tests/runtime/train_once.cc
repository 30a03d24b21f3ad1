// A site that trains alone, for tests that kill it: `train_once RUN_DIR TEXT STEPS [mpi]
// [rows=N] [micro_batches=N] [every=N] [threads=N] [lora]`. SIGTERM stops it, as
// a user would; exit code 0 when it is finished, 3 when it stopped. With mpi, one of several ranks
// under mpirun.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/trainer.h"
#include "tests/runtime/small_model.h"

namespace {

using namespace isthmus;
using namespace isthmus::runtime;

std::atomic<bool> stop{false};

int fail(const Error& error) {
  std::fprintf(stderr, "%s\n", error.text().c_str());
  return 1;
}

int run(int argc, char** argv) {
  const std::string run_dir = argv[1], text = argv[2];
  TrainOptions options{.steps = std::atoi(argv[3]),
                       .checkpoint_folder = run_dir + "/checkpoints",
                       .checkpoint_steps = 4,
                       .metrics_path = run_dir + "/metrics.jsonl"};
  options.schedule = {.peak = 5e-3, .warmup_steps = 5, .steps = 60};
  auto shape = small_shape();
  FineTuning tuning;
  bool is_mpi = false;
  std::size_t threads = 1;
  for (int i = 4; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto number = std::atoi(argument.substr(argument.find('=') + 1).c_str());
    if (argument == "mpi") is_mpi = true;
    if (argument == "lora") tuning.lora = {.rank = 4, .alpha = 8, .targets = {"*_proj"}};
    if (argument.starts_with("rows=")) shape.micro_batch = number;
    if (argument.starts_with("micro_batches=")) options.micro_batches = number;
    if (argument.starts_with("threads=")) threads = static_cast<std::size_t>(number);
    if (argument.starts_with("every=")) options.checkpoint_steps = number;
  }
  const auto disk = make_system_disk();
  const auto clock = make_system_clock();
  EventLog log(*clock, "alpha");
  log.add(make_terminal_sink(2, Severity::info));
  auto world = is_mpi
                   ? intra::make_mpi_communicator()
                   : Result<std::unique_ptr<intra::Communicator>>(intra::make_alone_communicator());
  if (!world) return fail(world.error());
  const auto data = TextDataset::open(*disk, {{text}}, shape.sequence, options.seed);
  if (!data) return fail(data.error());
  ThreadPool pool(std::vector<int>(threads, -1));
  auto model = Model::create(small_config(), shape, pool, tuning);
  if (!model) return fail(model.error());
  (*model)->initialise(options.seed);
  const auto outcome = train({.model = **model,
                              .data = *data,
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

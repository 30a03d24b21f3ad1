#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/disk.h"
#include "base/event_log.h"
#include "base/thread_pool.h"
#include "intra/communicator.h"
#include "intra/mesh.h"
#include "kernels/gemm.h"
#include "kernels/multiply_peak.h"
#include "launcher/command.h"
#include "launcher/rank_setup.h"
#include "launcher/run_folder.h"
#include "launcher/site_check.h"
#include "launcher/site_masking.h"
#include "launcher/stop_request.h"
#include "launcher/tensorboard_log.h"
#include "launcher/train_lines.h"
#include "runtime/family.h"
#include "runtime/frozen_digest.h"
#include "runtime/model_description.h"
#include "runtime/outer_sync.h"
#include "runtime/trainer.h"

namespace isthmus::launcher {
namespace {

runtime::TrainOptions train_options(const SiteFile& file, const RunFolder& folder) {
  const auto& train = file.train;
  return {.steps = file.inner_steps_total(),
          .micro_batches = train.accumulation,
          .adamw = train.adamw,
          .schedule = train.rate,
          .rates = train.rates,
          .spike_multiple = train.spike,
          .skipped_steps_max = train.skipped_steps,
          .seed = static_cast<std::uint64_t>(train.seed),
          .federated = !file.alone(),
          .inner_steps = file.sync.inner_steps,
          // max_lead counts from the state that a contribution is based on.
          .lead_steps = (file.sync.max_lead - 1) * file.sync.inner_steps,
          .checkpoint_folder = folder.checkpoints(),
          .checkpoint_steps =
              train.checkpoint_every == 0 ? file.sync.inner_steps : train.checkpoint_every,
          .checkpoint_after = train.checkpoint_after,
          .checkpoint_keep = static_cast<int>(train.checkpoints_kept),
          .evaluate_steps = train.evaluate_every,
          .held_out = file.data.held_out,
          .metrics_path = folder.metrics()};
}

// mpirun says how many ranks it started; without it there is one.
bool started_by_mpi() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

// One rank of a site, with everything that is real. The first one writes the log, speaks with the
// gateway, and holds the lock of the ranks, or where there is no gateway that of the run.
class SiteRank {
 public:
  SiteRank(const SiteFile& file, LogFormat format)
      : file_(file),
        format_of_log_(format),
        folder_(file.site.run_dir),
        disk_(make_system_disk()),
        clock_(make_system_clock()),
        log_(*clock_, file.site.name) {}

  Result<ExitCode> run() {
    stop_ = &catch_stop();
    ISTHMUS_CHECK(join_ranks());
    if (first_) ISTHMUS_CHECK(take_folder());
    ISTHMUS_CHECK(open_model_and_data());
    if (first_ && !file_.alone()) find_gateway();
    return train();
  }

 private:
  Result<void> join_ranks() {
    world_ = intra::make_alone_communicator();
    if (started_by_mpi()) {
      ISTHMUS_TRY(world_, intra::make_mpi_communicator());
    }
    ISTHMUS_TRY(const auto mesh,
                intra::Mesh::make(file_.mesh, world_->rank(), world_->world_size()));
    first_ = mesh.is_first();
    return {};
  }

  Result<void> take_folder() {
    ISTHMUS_TRY(lock_, file_.alone() ? lock_run(*disk_, folder_) : patient_lock());
    ISTHMUS_CHECK(disk_->make_folders(folder_.path()));
    ISTHMUS_TRY(auto events, make_file_sink(folder_.events()));
    log_.add(std::move(events));
    log_.add(format_of_log_ == LogFormat::human ? make_terminal_sink(2, Severity::info)
                                                : make_callback_sink(print_json));
    return {};
  }

  static void print_json(const Event& event) {
    std::puts(to_json(event).c_str());  // where nobody reads any more, that is no fault
    std::fflush(stdout);
  }

  // The ranks before may have been killed just now, and still be on their way out.
  Result<std::unique_ptr<DiskLock>> patient_lock() {
    constexpr int kLooks = 20;
    for (int look = 1;; ++look) {
      auto lock = lock_ranks(*disk_, folder_);
      if (lock || lock.error().code != ErrorCode::busy || look == kLooks) return lock;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  Result<void> open_model_and_data() {
    const auto cpus = rank_cpus(file_, world_->rank(), static_cast<int>(available_cpus().size()));
    if (!file_.train.cpus.empty()) pinned_to_ = cpus;
    pool_ = std::make_unique<ThreadPool>(cpus);
    ISTHMUS_TRY(model_, make_training_model(file_, *disk_, *pool_));
    frozen_digest_ = runtime::frozen_digest(*model_);
    ISTHMUS_TRY(tokenizer_, site_tokenizer(file_, *disk_));
    token_format_ = token_format(file_, *tokenizer_, model_->config().vocabulary);
    ISTHMUS_TRY(data_, runtime::TextDataset::open(*disk_, text_sources(file_), file_.train.sequence,
                                                  static_cast<std::uint64_t>(file_.train.seed),
                                                  token_format_, file_.data.documents));
    ISTHMUS_TRY(masking_, site_masking(file_, *tokenizer_, model_->config()));
    settings_ = runtime::settings_text(model_->config(), model_->fine_tuning(), frozen_digest_) +
                tokenizer_settings(*tokenizer_) + masking_settings(masking_);
    return {};
  }

  void find_gateway() { outer_ = runtime::make_attached_sync(folder_.socket(), settings_, log_); }

  // Whoever watches the first rank.
  std::vector<runtime::TrainObserver*> observers() {
    if (!first_) return {};
    const bool in_bf16 =
        file_.train.precision == runtime::Precision::bf16 && kernels::bf16_gemm_is_native();
    const bool human = format_of_log_ == LogFormat::human;
    lines_.emplace(
        human ? stderr : stdout, *clock_,
        TrainLines::Options{.site = file_.site.name,
                            .format = format_of_log_,
                            .peak = kernels::multiply_peak(
                                *pool_, in_bf16 ? DType::bf16 : DType::f32, *clock_, kPeakTime),
                            .pause = ::isatty(STDERR_FILENO) != 0 ? kTerminalPause : kFilePause});
    std::vector<runtime::TrainObserver*> all = {&*lines_};
    if (!file_.train.tensorboard) return all;
    auto opened = TensorBoardLog::open(*disk_, folder_.tensorboard(), *clock_);
    if (!opened) {
      log_.warning("no_tensorboard", {},
                   {{"why", opened.error().text()}, {"then", "training goes on"}});
      return all;
    }
    tensorboard_ = std::move(*opened);
    all.push_back(tensorboard_.get());
    return all;
  }

  Result<ExitCode> train() {
    log_.info(
        "training_began", {},
        {{"ranks", world_->world_size()},
         {"threads", pool_->workers()},
         {"parameters", runtime::parameter_count(model_->config())},
         {"trained", runtime::trained_parameter_count(model_->config(), model_->fine_tuning())},
         {"precision", runtime::to_string(file_.train.precision)},
         {"objective", runtime::to_string(runtime::objective_of(model_->config()))}});
    auto options = train_options(file_, folder_);
    options.frozen_digest = frozen_digest_;
    options.evaluation = {.format = token_format_,
                          .sequences_max = file_.train.evaluate_sequences,
                          .masking = pointer_to(masking_)};
    const auto outcome = runtime::train({.model = *model_,
                                         .data = *data_,
                                         .masking = pointer_to(masking_),
                                         .world = *world_,
                                         .disk = *disk_,
                                         .clock = *clock_,
                                         .log = log_,
                                         .outer = outer_.get(),
                                         .tokenizer = tokenizer_.get(),
                                         .observers = observers(),
                                         .cpus = pinned_to_,
                                         .stop = stop_},
                                        options);
    if (!outcome) return failed(outcome.error());
    log_.info(outcome->finished ? "training_finished" : "training_stopped", {},
              {{"inner_step", outcome->inner_step},
               {"tokens", outcome->tokens},
               {"checkpoint", outcome->checkpoint}});
    ISTHMUS_CHECK(world_->close());
    // Whoever stopped it must know before the folder is moved, or the others go on.
    if (!outcome->not_kept.empty())
      return Error{ErrorCode::disk_full, "no room for all of the checkpoint: " + outcome->not_kept};
    return outcome->finished ? ExitCode::done : ExitCode::stopped;
  }

  Result<ExitCode> failed(const Error& error) {
    log_.alarm("training_failed", {}, {{"why", error.text()}});
    // The collective broke, or another rank did: only a new start of all ranks helps.
    if (error.code == ErrorCode::unavailable && world_->world_size() > 1) return ExitCode::broken;
    return error;
  }

  static constexpr Nanoseconds kPeakTime = 50 * kMillisecond;
  // Between two lines for people, who look at a terminal, or into a file later.
  static constexpr Nanoseconds kTerminalPause = kSecond;
  static constexpr Nanoseconds kFilePause = 30 * kSecond;

  const SiteFile& file_;
  const LogFormat format_of_log_;
  RunFolder folder_;
  // In the order in which they need each other.
  std::unique_ptr<Disk> disk_;
  std::unique_ptr<Clock> clock_;
  std::unique_ptr<intra::Communicator> world_;
  bool first_ = false;  // rank of the mesh
  std::unique_ptr<DiskLock> lock_;
  EventLog log_;
  std::vector<int> pinned_to_;  // CPUs, where the file says them
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<runtime::Model> model_;
  std::string frozen_digest_;
  std::unique_ptr<runtime::Tokenizer> tokenizer_;
  runtime::TokenFormat token_format_;
  std::optional<runtime::TextDataset> data_;
  std::optional<runtime::Masking> masking_;  // where the model predicts hidden tokens
  std::string settings_;                     // what sites must agree on
  std::unique_ptr<runtime::OuterSync> outer_;
  std::optional<TrainLines> lines_;
  std::unique_ptr<TensorBoardLog> tensorboard_;
  const std::atomic<bool>* stop_ = nullptr;
};

struct TrainArguments {
  SiteArguments site;
  std::string format = "human";
};

ExitCode run(const TrainArguments& options) {
  // Secrets and roster are the gateway's business: a rank needs neither.
  const auto file = load_site(options.site.paths.front(), options.site.overrides);
  if (!file) return fail(file.error());
  const auto code =
      SiteRank(*file, options.format == "json" ? LogFormat::json : LogFormat::human).run();
  return code ? *code : fail(code.error());
}

}  // namespace

void add_train(Command program) {
  const auto command = program.subcommand(
      "train", "Run the ranks of a site (what launch starts); several through mpirun");
  const auto options = std::make_shared<TrainArguments>();
  add_site_arguments(command, options->site, HowManySites::one);
  command
      .option("--log-format", options->format,
              "Sentences and a line for a step now and then, on stderr; or every event and step as "
              "a line of JSON, on stdout")
      .one_of({"human", "json"})
      .shows_default();
  command.footer(
      "Goes on from the newest checkpoint in run_dir. Ctrl-C or SIGTERM: finishes the inner step, "
      "writes\na checkpoint and exits with 3.\n\n"
      "Example:\n  isthmus train alpha.toml\n  mpirun -n 4 isthmus train alpha.toml");
  command.runs([options] { return run(*options); });
}

}  // namespace isthmus::launcher

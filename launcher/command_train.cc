#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/disk.h"
#include "base/event_log.h"
#include "base/thread_pool.h"
#include "intra/communicator.h"
#include "intra/mesh.h"
#include "launcher/command.h"
#include "launcher/rank_setup.h"
#include "launcher/run_folder.h"
#include "launcher/site_check.h"
#include "launcher/stop_request.h"
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
          .seed = static_cast<std::uint64_t>(train.seed),
          .federated = !file.alone(),
          .inner_steps = file.sync.inner_steps,
          // max_lead counts from the state that a contribution is based on.
          .lead_steps = (file.sync.max_lead - 1) * file.sync.inner_steps,
          .checkpoint_folder = folder.checkpoints(),
          .checkpoint_steps =
              train.checkpoint_every == 0 ? file.sync.inner_steps : train.checkpoint_every,
          .checkpoint_keep = static_cast<int>(train.checkpoints_kept),
          .metrics_path = folder.metrics()};
}

// mpirun says how many ranks it started; without it there is one.
bool started_by_mpi() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

Result<ExitCode> train_site(const SiteFile& file) {
  const auto& stop = watch_for_stop();
  const RunFolder folder(file.site.run_dir);
  const auto disk = make_system_disk();
  const auto clock = make_system_clock();
  auto world = intra::make_alone_communicator();
  if (started_by_mpi()) {
    ISTHMUS_TRY(world, intra::make_mpi_communicator());
  }
  ISTHMUS_CHECK(intra::Mesh::make(file.mesh, world->rank(), world->world_size()));
  const bool first = world->rank() == 0;

  ISTHMUS_CHECK(disk->make_folders(folder.path()));
  EventLog log(*clock, file.site.name);
  if (first) {
    ISTHMUS_TRY(auto events, make_file_sink(folder.events()));
    log.add(std::move(events));
    log.add(make_terminal_sink(2, Severity::info));
  }
  ThreadPool pool(rank_cpus(file, world->rank(), static_cast<int>(available_cpus().size())));
  ISTHMUS_TRY(const auto model, make_initial_model(file, *disk, pool));
  ISTHMUS_TRY(const auto data,
              runtime::TextDataset::open(*disk, text_sources(file), file.train.sequence,
                                         static_cast<std::uint64_t>(file.train.seed)));
  std::unique_ptr<runtime::OuterSync> outer;
  if (first && !file.alone())
    outer = runtime::make_attached_sync(folder.socket(),
                                        fmt::format("{} of {} parameters", model->config().family,
                                                    runtime::parameter_count(model->config())),
                                        log);
  log.info("training_began", {},
           {{"ranks", world->world_size()},
            {"threads", pool.workers()},
            {"parameters", runtime::parameter_count(model->config())},
            {"precision", runtime::to_string(file.train.precision)}});
  const auto outcome = runtime::train({.model = *model,
                                       .data = data,
                                       .world = *world,
                                       .disk = *disk,
                                       .clock = *clock,
                                       .log = log,
                                       .outer = outer.get(),
                                       .stop = &stop},
                                      train_options(file, folder));
  if (!outcome) {
    log.alarm("training_failed", {}, {{"why", outcome.error().text()}});
    // The collective broke, or another rank did: only a new start of all ranks helps.
    if (outcome.error().code == ErrorCode::unavailable && world->world_size() > 1)
      return ExitCode::broken;
    return outcome.error();
  }
  log.info(outcome->finished ? "training_finished" : "training_stopped", {},
           {{"inner_step", outcome->inner_step},
            {"tokens", outcome->tokens},
            {"checkpoint", outcome->checkpoint}});
  ISTHMUS_CHECK(world->close());
  return outcome->finished ? ExitCode::done : ExitCode::stopped;
}

ExitCode run(const SiteArguments& arguments) {
  // Secrets and roster are the gateway's business: a rank needs neither.
  auto text = read_site_file(arguments.paths.front(), arguments.overrides);
  if (!text) return fail(text.error());
  if (text->is_toml) check_values(*text, this_machine());
  if (!text->faults.empty()) return fail(Error{ErrorCode::invalid_argument, text->fault_text()});
  const auto code = train_site(text->file);
  return code ? *code : fail(code.error());
}

}  // namespace

void add_train(CLI::App& program, Action& action) {
  auto* command = program.add_subcommand(
      "train", "Run the ranks of a site (what launch starts); several through mpirun");
  const auto arguments = std::make_shared<SiteArguments>();
  add_site_arguments(*command, *arguments, HowManySites::one);
  command->footer(
      "Goes on from the newest checkpoint in run_dir. Ctrl-C or SIGTERM: finishes the inner step, "
      "writes\na checkpoint and exits with 3.\n\n"
      "Example:\n  isthmus train alpha.toml\n  mpirun -n 4 isthmus train alpha.toml");
  command->callback([arguments, &action] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace isthmus::launcher

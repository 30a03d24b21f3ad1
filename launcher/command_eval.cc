#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "base/disk.h"
#include "base/thread_pool.h"
#include "launcher/command.h"
#include "launcher/rank_setup.h"
#include "launcher/site_check.h"
#include "runtime/checkpoint.h"
#include "runtime/evaluate.h"

namespace isthmus::launcher {
namespace {

struct Options {
  SiteArguments site;
  std::string checkpoint;
  std::int64_t sequences = 24;
  bool initial = false;
  bool json = false;
};

Result<void> evaluate(const Options& options, const SiteFile& file) {
  if (file.data.held_out.empty())
    return Error{ErrorCode::invalid_argument,
                 "the site file has no data.held_out: there is nothing to evaluate on"};
  const auto disk = make_system_disk();
  ThreadPool pool(rank_cpus(file, 0, static_cast<int>(available_cpus().size())));
  auto checkpoint = options.checkpoint;
  if (checkpoint.empty() && !options.initial) {
    ISTHMUS_TRY(checkpoint, trained_model_of(file, *disk));
  }
  const auto shape = evaluation_shape(file);
  auto opened = options.initial ? make_initial_model(file, shape, *disk, pool)
                                : runtime::open_model(*disk, checkpoint, shape, pool);
  if (!opened) return std::move(opened).error();
  auto report = nlohmann::ordered_json::object();
  report["site"] = file.site.name;
  report["checkpoint"] = options.initial ? "" : checkpoint;
  for (const auto& text : file.data.held_out) {
    ISTHMUS_TRY(const auto loss,
                runtime::held_out_loss(**opened, *disk, text.path, options.sequences));
    report["held_out"][text.name] = {{"bits_per_byte", loss.bits_per_byte},
                                     {"sequences", loss.sequences}};
    if (!options.json)
      fmt::print("{:<12} {:7.4f} bits per byte  ({})\n", text.name, loss.bits_per_byte,
                 counted(loss.sequences, "sequence"));
  }
  if (options.json) fmt::print("{}\n", report.dump());
  return {};
}

ExitCode run(const Options& options) {
  const auto file = load_site(options.site.paths.front(), options.site.overrides);
  if (!file) return fail(file.error());
  const auto done = evaluate(options, *file);
  return done ? ExitCode::done : fail(done.error());
}

}  // namespace

void add_eval(Command program) {
  const auto command = program.subcommand(
      "eval", "Held-out loss of a site's model, in bits per byte, on each text of data.held_out");
  const auto options = std::make_shared<Options>();
  add_site_arguments(command, options->site, HowManySites::one);
  const auto checkpoint =
      command.option("--checkpoint", options->checkpoint,
                     "A checkpoint or any Hugging Face directory (default: the site's newest)");
  command.flag("--initial", options->initial, "The model before any training instead")
      .excludes(checkpoint);
  command.option("--sequences", options->sequences, "How many sequences of each text, at most")
      .in_range(1, 1'000'000)
      .shows_default();
  command.flag("--json", options->json, "One JSON object");
  command.footer("Example:\n  isthmus eval alpha.toml");
  command.runs([options] { return run(*options); });
}

}  // namespace isthmus::launcher

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/counted.h"
#include "base/disk.h"
#include "base/thread_pool.h"
#include "launcher/command.h"
#include "launcher/progress_line.h"
#include "launcher/rank_setup.h"
#include "launcher/site_check.h"
#include "launcher/site_masking.h"
#include "runtime/evaluate.h"
#include "runtime/model_directory.h"

namespace isthmus::launcher {
namespace {

struct EvalArguments {
  SiteArguments site;
  ModelArguments model;
  std::int64_t sequences = 24;
  bool initial = false;
  bool json = false;
};

Result<void> evaluate(const EvalArguments& options, const SiteFile& file) {
  if (file.data.held_out.empty())
    return Error{ErrorCode::invalid_argument,
                 "the site file has no data.held_out: there is nothing to evaluate on"};
  const auto disk = make_system_disk();
  ThreadPool pool(rank_cpus(file, 0, static_cast<int>(available_cpus().size())));
  std::string checkpoint;
  if (!options.initial) {
    ISTHMUS_TRY(checkpoint, trained_model_of(file, *disk, options.model));
  }
  const auto shape = evaluation_shape(file);
  auto opened = options.initial ? make_initial_model(file, shape, *disk, pool)
                                : runtime::open_model(*disk, checkpoint, shape, pool);
  if (!opened) return std::move(opened).error();
  auto report = nlohmann::ordered_json::object();
  report["site"] = file.site.name;
  report["checkpoint"] = checkpoint;
  ISTHMUS_TRY(const auto tokenizer, site_tokenizer(file, *disk));
  ISTHMUS_TRY(const auto masking, site_masking(file, *tokenizer, (*opened)->config()));
  runtime::HeldOutOptions held_out{
      .format = token_format(file, *tokenizer, (*opened)->config().vocabulary),
      .sequences_max = options.sequences,
      .masking = pointer_to(masking)};
  const auto of_what =
      masking ? fmt::format(" of hidden tokens, {:.3g} % of all", 100 * masking->share())
              : std::string();
  const auto clock = make_system_clock();
  for (const auto& text : file.data.held_out) {
    const auto began = clock->now();
    ProgressLine line(stderr, *clock);
    held_out.progress = [&](std::int64_t done, std::int64_t total) {
      line.show({.done = static_cast<std::uint64_t>(done),
                 .total = static_cast<std::uint64_t>(total),
                 .seconds = seconds_of(clock->now() - began),
                 .things = "sequences"});
    };
    ISTHMUS_TRY(const auto loss,
                runtime::held_out_loss(**opened, *tokenizer, *disk, text.path, held_out));
    line.clear();
    const bool per_byte = loss.bits_per_byte.has_value();
    report["held_out"][text.name] = {{per_byte ? "bits_per_byte" : "bits_per_token", loss.bits()},
                                     {"perplexity", loss.perplexity},
                                     {"objective", runtime::to_string(loss.objective)},
                                     {"sequences", loss.sequences}};
    if (!options.json)
      fmt::print("{:<12} {:7.4f} bits per {}  perplexity {:.2f}{}  ({})\n", text.name, loss.bits(),
                 per_byte ? "byte" : "token", loss.perplexity, of_what,
                 counted(loss.sequences, "sequence"));
  }
  if (options.json) fmt::print("{}\n", report.dump());
  return {};
}

ExitCode run(const EvalArguments& options) {
  const auto file = load_site(options.site.paths.front(), options.site.overrides);
  if (!file) return fail(file.error());
  const auto done = evaluate(options, *file);
  return done ? ExitCode::done : fail(done.error());
}

}  // namespace

void add_eval(Command program) {
  const auto command = program.subcommand("eval",
                                          "Held-out loss of a site's model on each text of "
                                          "data.held_out: bits per byte, and perplexity "
                                          "per token (of a model that predicts hidden "
                                          "tokens, of those)");
  const auto options = std::make_shared<EvalArguments>();
  add_site_arguments(command, options->site, HowManySites::one);
  const auto initial =
      command.flag("--initial", options->initial, "The model before any training instead");
  for (const auto other : add_model_arguments(command, options->model)) initial.excludes(other);
  command.option("--sequences", options->sequences, "How many sequences of each text, at most")
      .in_range(1, 1'000'000)
      .shows_default();
  command.flag("--json", options->json, "One JSON object");
  command.footer("Example:\n  isthmus eval alpha.toml");
  command.runs([options] { return run(*options); });
}

}  // namespace isthmus::launcher

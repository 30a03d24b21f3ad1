#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/disk.h"
#include "base/printable.h"
#include "base/thread_pool.h"
#include "launcher/command.h"
#include "launcher/rank_setup.h"
#include "launcher/site_check.h"
#include "runtime/checkpoint.h"
#include "runtime/generate.h"

namespace isthmus::launcher {
namespace {

struct Options {
  SiteArguments site;
  std::string checkpoint;
  std::string prompt;
  runtime::GenerateOptions generate;
};

Result<std::string> continue_text(const Options& options, const SiteFile& file) {
  const auto disk = make_system_disk();
  ThreadPool pool(rank_cpus(file, 0, static_cast<int>(available_cpus().size())));
  auto checkpoint = options.checkpoint;
  if (checkpoint.empty()) {
    ISTHMUS_TRY(checkpoint, trained_model_of(file, *disk));
  }
  ISTHMUS_TRY(const auto model,
              runtime::open_model(*disk, checkpoint, evaluation_shape(file), pool));
  return runtime::generate(*model, options.prompt, options.generate);
}

ExitCode run(const Options& options) {
  const auto file = load_site(options.site.paths.front(), options.site.overrides);
  if (!file) return fail(file.error());
  const auto more = continue_text(options, *file);
  if (!more) return fail(more.error());
  // A terminal would obey what a young model says.
  const auto text = options.prompt + *more;
  fmt::print("{}\n", ::isatty(STDOUT_FILENO) != 0 ? printable_lines(text) : text);
  return ExitCode::done;
}

}  // namespace

void add_generate(CLI::App& program, Action& action) {
  auto* command = program.add_subcommand("generate", "Let a site's model continue a text");
  const auto options = std::make_shared<Options>();
  add_site_arguments(*command, options->site, HowManySites::one);
  command->add_option("--prompt", options->prompt, "What to continue (default: a new line)");
  command->add_option("--checkpoint", options->checkpoint,
                      "A checkpoint or any Hugging Face directory (default: the site's newest)");
  auto& generate = options->generate;
  command->add_option("--bytes", generate.bytes_max, "Length of the continuation, at most")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--temperature", generate.temperature, "0: always the likeliest byte")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command->add_option("--top-k", generate.top_k, "Draw among so many likeliest bytes; 0: all")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  command->add_option("--seed", generate.seed, "The same seed gives the same text")
      ->type_name("NUMBER")
      ->check(whole_number)
      ->capture_default_str();
  command->add_flag("--line", generate.stop_at_newline, "Stop at the end of the line");
  command->footer(
      "Example:\n  isthmus generate alpha.toml --prompt \"The package manager\" --line");
  command->callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace isthmus::launcher

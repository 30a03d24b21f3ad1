#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/disk.h"
#include "base/printable.h"
#include "base/thread_pool.h"
#include "launcher/command.h"
#include "launcher/rank_setup.h"
#include "launcher/site_check.h"
#include "runtime/generate.h"
#include "runtime/model_directory.h"

namespace isthmus::launcher {
namespace {

struct GenerateArguments {
  SiteArguments site;
  ModelArguments model;
  std::vector<std::string> prompts;
  int samples = 1;  // of each prompt
  bool json = false;
  runtime::GenerateOptions generate;
};

Result<std::vector<std::string>> continue_texts(const GenerateArguments& options,
                                                const SiteFile& file,
                                                std::span<const std::string> prompts) {
  const auto disk = make_system_disk();
  ThreadPool pool(rank_cpus(file, 0, static_cast<int>(available_cpus().size())));
  ISTHMUS_TRY(const auto checkpoint, trained_model_of(file, *disk, options.model));
  ISTHMUS_TRY(const auto model,
              runtime::open_model(*disk, checkpoint, evaluation_shape(file), pool));
  ISTHMUS_TRY(const auto tokenizer, site_tokenizer(file, *disk));
  return runtime::generate(*model, *tokenizer, prompts, options.generate);
}

void print_texts(const GenerateArguments& options, std::span<const std::string> prompts,
                 std::span<const std::string> more) {
  if (options.json) {
    auto all = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < prompts.size(); ++i)
      all.push_back({{"prompt", prompts[i]}, {"text", more[i]}});
    fmt::print("{}\n", all.dump(2));
    return;
  }
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    // A terminal would obey what a young model says.
    const auto text = options.generate.answers ? more[i] : prompts[i] + more[i];
    fmt::print("{}{}\n", i == 0 ? "" : "\n",
               ::isatty(STDOUT_FILENO) != 0 ? printable_lines(text) : text);
  }
}

ExitCode run(const GenerateArguments& options) {
  const auto file = load_site(options.site.paths.front(), options.site.overrides);
  if (!file) return fail(file.error());
  std::vector<std::string> prompts;
  for (const auto& prompt :
       options.prompts.empty() ? std::vector<std::string>{""} : options.prompts)
    prompts.insert(prompts.end(), static_cast<std::size_t>(options.samples), prompt);
  const auto more = continue_texts(options, *file, prompts);
  if (!more) return fail(more.error());
  print_texts(options, prompts, *more);
  return ExitCode::done;
}

}  // namespace

void add_generate(Command program) {
  const auto command = program.subcommand("generate", "Let a site's model continue a text");
  const auto options = std::make_shared<GenerateArguments>();
  add_site_arguments(command, options->site, HowManySites::one);
  command
      .option("--prompt", options->prompts,
              "What to continue (default: a new line); again for one text more")
      .type_name("TEXT")
      .repeatable();
  command.option("--samples", options->samples, "Continue each prompt so many times")
      .type_name("NUMBER")
      .in_range(1, 1024)
      .shows_default();
  add_model_arguments(command, options->model);
  auto& generate = options->generate;
  command
      .option("--bytes", generate.bytes_max,
              "Length of the continuation, at most, but for its last token")
      .in_range(1, 1'000'000)
      .shows_default();
  command.option("--temperature", generate.temperature, "0: always the likeliest token")
      .in_range(0.0, 100.0)
      .shows_default();
  command.option("--top-k", generate.top_k, "Draw among so many likeliest tokens; 0: all")
      .in_range(0, 1 << 22)
      .shows_default();
  command
      .option("--top-p", generate.top_p,
              "Draw among the fewest likeliest tokens of so much probability; 1: all")
      .in_range(0.0, 1.0)
      .shows_default();
  command.option("--seed", generate.seed, "The same seed gives the same text")
      .type_name("NUMBER")
      .whole_number()
      .shows_default();
  command.flag("--answer", generate.answers,
               "Each prompt is what a user says, laid out as `isthmus data prepare` lays out "
               "messages, and the model answers");
  command.flag("--line", generate.stop_at_newline, "Stop at the end of the line");
  command.flag("--json", options->json, "One JSON array");
  command.footer(
      "Example:\n  isthmus generate alpha.toml --prompt \"The package manager\" --line --samples "
      "3\n  isthmus generate alpha.toml --answer --prompt \"What is a package?\"");
  command.runs([options] { return run(*options); });
}

}  // namespace isthmus::launcher

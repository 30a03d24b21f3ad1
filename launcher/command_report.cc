#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <memory>
#include <span>
#include <string_view>

#include "base/counted.h"
#include "base/disk.h"
#include "base/thread_pool.h"
#include "inter/outer_store.h"
#include "launcher/command.h"
#include "launcher/rank_setup.h"
#include "launcher/report.h"
#include "launcher/roster_file.h"
#include "launcher/run_folder.h"
#include "launcher/site_check.h"
#include "launcher/site_masking.h"
#include "runtime/evaluate.h"
#include "runtime/family.h"
#include "runtime/generate.h"
#include "runtime/model_directory.h"
#include "runtime/utf8_state.h"

namespace isthmus::launcher {
namespace {

constexpr std::size_t kFileBytesMax = std::size_t{1} << 20;

struct ReportArguments {
  SiteArguments sites;
  std::vector<std::string> controls;
  std::string output;
  std::int64_t sequences = 24;
  bool json = false;
};

// A text of at most `bytes`, ending with a word, else with a whole character.
std::string cut_at_word(std::string text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) --bytes;
  const auto space = text.rfind(' ', bytes);
  text.resize(space != std::string::npos && space > bytes / 2 ? space : bytes);
  return text;
}

// Spaces, line ends and no-break spaces (C2 A0) at the front.
std::size_t indentation(std::string_view text) {
  std::size_t n = 0;
  while (n < text.size()) {
    if (text[n] == ' ' || text[n] == '\n' || text[n] == '\t')
      ++n;
    else if (text.substr(n, 2) == "\xC2\xA0")
      n += 2;
    else
      break;
  }
  return n;
}

// The beginning of the first long paragraph that is neither a list, a table nor a command.
Result<std::string> prompt_of(Disk& disk, const std::string& path,
                              const runtime::Tokenizer& tokenizer,
                              const runtime::TokenFormat& format) {
  constexpr std::size_t kLook = std::size_t{1} << 16, kProse = 120, kPrompt = 48;
  ISTHMUS_TRY(const auto file, runtime::TokenFile::open(disk, path, format));
  std::vector<std::int32_t> tokens(std::min<std::uint64_t>(file.tokens(), kLook));
  ISTHMUS_CHECK(file.read(0, tokens));
  std::erase_if(tokens, [&](std::int32_t token) { return token >= tokenizer.vocabulary(); });
  const auto whole = tokenizer.decode(tokens);
  std::string_view rest = whole;
  while (!rest.empty()) {
    auto paragraph = rest.substr(0, rest.find("\n\n"));
    rest.remove_prefix(std::min(paragraph.size() + 2, rest.size()));
    paragraph.remove_prefix(indentation(paragraph));
    const auto lead = paragraph.empty() ? 0 : static_cast<unsigned char>(paragraph.front());
    if (paragraph.size() >= kProse && (std::isalpha(lead) != 0 || lead >= 0xC3))
      return cut_at_word(std::string(paragraph.substr(0, paragraph.find('\n'))), kPrompt);
  }
  return cut_at_word(whole.substr(0, whole.find('\n')), kPrompt);
}

// The site's id is in the roster; without it, what the ranks wrote must do.
Result<void> read_steps(Disk& disk, const SiteFile& file, SiteReport& report) {
  ISTHMUS_TRY(const auto records,
              inter::OuterStore::read_records(disk, RunFolder(file.site.run_dir).outer()));
  ISTHMUS_TRY(const auto state,
              inter::OuterStore::newest_state(disk, RunFolder(file.site.run_dir).outer()));
  if (state) {
    report.state_step = state->step;
    report.state_root = state->root.hex();
  }
  const auto key = read_operator_key(disk, file.site.operator_key);
  if (!key) return {};
  const auto roster = read_roster(disk, file.site.roster, *key);
  if (!roster) return {};
  if (const auto* self = roster->find(file.site.name)) read_records(records, self->id, report);
  return {};
}

Result<SiteReport> report_site(const std::string& path, const ReportArguments& options) {
  ISTHMUS_TRY(const auto file, load_site(path, options.sites.overrides));
  const RunFolder folder(file.site.run_dir);
  const auto disk = make_system_disk();
  SiteReport report;
  report.site = file.site.name;
  report.outer_steps_planned = file.sync.outer_steps;
  report.checkpoints = folder.checkpoints();
  report.events = folder.events();
  report.metrics = folder.metrics();
  read_metrics(folder.metrics(), file.alone() ? file.sync.inner_steps : 0, report);
  if (!file.alone()) ISTHMUS_CHECK(read_steps(*disk, file, report));
  const auto steps = static_cast<std::uint64_t>(report.outer_steps);
  if (report.state_step && *report.state_step > steps)
    fmt::print(stderr,
               "isthmus: warning: {} has the state of step {} and whole records of {} only: its "
               "steps and tokens are told too low\n",
               file.site.name, *report.state_step, counted(steps, "step"));
  if (const auto bytes = read_file(*disk, folder.traffic(), kFileBytesMax)) {
    auto traffic = parse_traffic(isthmus::text_of(*bytes));
    if (traffic)
      report.traffic = std::move(*traffic);
    else  // a power failure may leave it empty
      fmt::print(stderr, "isthmus: warning: the report has no traffic of {}: {}\n", file.site.name,
                 traffic.error().text());
  }
  ThreadPool pool(rank_cpus(file, 0, static_cast<int>(available_cpus().size())));
  const auto shape = evaluation_shape(file);
  ISTHMUS_TRY(const auto before, make_initial_model(file, shape, *disk, pool));
  ISTHMUS_TRY(const auto trained, trained_model_of(file, *disk));
  ISTHMUS_TRY(const auto after, runtime::open_model(*disk, trained, shape, pool));
  ISTHMUS_TRY(const auto tokenizer, site_tokenizer(file, *disk));
  report.objective = runtime::objective_of(after->config());
  const auto format = token_format(file, *tokenizer, after->config().vocabulary);
  ISTHMUS_TRY(const auto masking, site_masking(file, *tokenizer, after->config()));
  const runtime::HeldOutOptions how{
      .format = format, .sequences_max = options.sequences, .masking = pointer_to(masking)};
  for (const auto& held_out : file.data.held_out) {
    HeldOutReport out{.name = held_out.name};
    if (!report.initial_replaced) {
      ISTHMUS_TRY(const auto first,
                  runtime::held_out_loss(*before, *tokenizer, *disk, held_out.path, how));
      out.before = first.bits();
    }
    ISTHMUS_TRY(const auto last,
                runtime::held_out_loss(*after, *tokenizer, *disk, held_out.path, how));
    out.per_token = !last.bits_per_byte;
    out.after = last.bits();
    ISTHMUS_TRY(auto prompt, prompt_of(*disk, held_out.path, *tokenizer, format));
    // Else it is no text to go on with, or the model continues none.
    if (runtime::is_utf8(prompt) && report.objective == runtime::Objective::next_token) {
      out.prompt = std::move(prompt);
      ISTHMUS_TRY(auto texts, runtime::generate(*after, *tokenizer, std::span(&out.prompt, 1),
                                                {.bytes_max = 80, .stop_at_newline = true}));
      out.generated = std::move(texts.front());
    }
    report.held_out.push_back(std::move(out));
  }
  return report;
}

Result<void> make_report(const ReportArguments& options) {
  Report report;
  for (const auto& path : options.sites.paths) {
    ISTHMUS_TRY(auto site, report_site(path, options));
    report.sites.push_back(std::move(site));
  }
  for (const auto& path : options.controls) {
    ISTHMUS_TRY(auto site, report_site(path, options));
    report.controls.push_back(std::move(site));
  }
  const auto json = to_json(report) + "\n";
  if (options.json)
    fmt::print("{}", json);
  else
    fmt::print("{}", to_text(report));
  if (options.output.empty()) return {};
  const auto disk = make_system_disk();
  ISTHMUS_CHECK(replace_file(*disk, options.output, std::as_bytes(std::span(json))));
  if (!options.json) fmt::print("report: {}\n", options.output);
  return {};
}

}  // namespace

void add_report(Command program) {
  const auto command = program.subcommand(
      "report", "What a run came to: held-out loss, speed, traffic, text, and where its files are");
  const auto options = std::make_shared<ReportArguments>();
  add_site_arguments(command, options->sites, HowManySites::some);
  command
      .option("--control", options->controls, "Site files of runs trained alone, to compare with")
      .repeatable();
  command.option("--output", options->output, "Write it as JSON to this file as well");
  command.option("--sequences", options->sequences, "How many sequences of each held-out text")
      .in_range(1, 1'000'000)
      .shows_default();
  command.flag("--json", options->json, "Print JSON");
  command.footer("Example:\n  isthmus report alpha.toml beta.toml --output report.json");
  command.runs([options] {
    const auto made = make_report(*options);
    return made ? ExitCode::done : fail(made.error());
  });
}

}  // namespace isthmus::launcher

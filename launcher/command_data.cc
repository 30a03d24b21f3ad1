#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/counted.h"
#include "base/disk.h"
#include "base/thread_pool.h"
#include "launcher/command.h"
#include "launcher/progress_line.h"
#include "launcher/units.h"
#include "runtime/text_corpus.h"

namespace isthmus::launcher {
namespace {

using runtime::DocumentFormat;

struct DataArguments {
  std::string source;
  std::string train;
  std::string held_out;
  std::string tokenizer;
  std::string format;
};

// "812 kB", "203400 tokens (810 kB of text)".
std::string amount(const runtime::TokenFileFacts& facts) {
  const auto bytes = about_bytes(static_cast<double>(facts.text_bytes));
  if (facts.width == runtime::TokenWidth::byte) return bytes;
  return fmt::format("{} of {}", counted(facts.tokens, "token"), bytes);
}

std::string targets(const runtime::TokenFileFacts& facts) {
  return facts.has_mask ? fmt::format(", {} of them targets", facts.targets) : "";
}

void print_result(const DataArguments& options, DocumentFormat format,
                  const runtime::PreparedText& prepared) {
  const auto* const thing = format == DocumentFormat::text ? "paragraph" : "record";
  fmt::print("{}: {}; {} to train on{} in {}", options.source, counted(prepared.documents, thing),
             amount(prepared.train), targets(prepared.train), options.train);
  if (!options.held_out.empty())
    fmt::print(", {} held out{} in {}", amount(prepared.held_out), targets(prepared.held_out),
               options.held_out);
  fmt::print("\n");
}

ExitCode run(const DataArguments& options) {
  const auto disk = make_system_disk();
  const auto clock = make_system_clock();
  runtime::PrepareOptions task{.source = options.source,
                               .train = options.train,
                               .held_out = options.held_out,
                               .format = options.format == "text" ? DocumentFormat::text
                                         : options.format == "jsonl"
                                             ? DocumentFormat::json_lines
                                             : runtime::format_by_name(options.source)};
  std::unique_ptr<runtime::Tokenizer> tokenizer;
  if (!options.tokenizer.empty()) {
    auto opened = runtime::open_tokenizer(*disk, options.tokenizer);
    if (!opened) return fail(opened.error());
    tokenizer = std::move(*opened);
    task.tokenizer = tokenizer.get();
  }
  ProgressLine line(stderr, *clock);
  const auto began = clock->now();
  task.progress = [&](std::uint64_t done, std::uint64_t total) {
    line.show({.done = done,
               .total = total,
               .seconds = seconds_of(clock->now() - began),
               .things = "",
               .amount = about_bytes});
  };
  ThreadPool pool(std::vector<int>(available_cpus().size(), -1));
  const auto prepared = runtime::prepare_text(*disk, pool, task);
  line.clear();
  if (!prepared) return fail(prepared.error());
  if (prepared->went_on) fmt::print("went on where an earlier run was stopped\n");
  print_result(options, task.format, *prepared);
  return ExitCode::done;
}

}  // namespace

void add_data(Command program) {
  const auto command = program.subcommand("data", "Prepare text to train on");
  const auto prepare = command.subcommand(
      "prepare",
      "Turn a text or JSON lines, plain or compressed (gzip, zstd), into what is trained on and "
      "what is held out: every 20th paragraph or record");
  const auto options = std::make_shared<DataArguments>();
  prepare.option("SOURCE", options->source, "The text, or the JSON lines").required();
  prepare.option("--train", options->train, "Where the part to train on goes").required();
  prepare.option("--held-out", options->held_out,
                 "Where the held-out part goes (default: nothing is held out)");
  prepare.option("--tokenizer", options->tokenizer,
                 "A tokenizer.json, a SentencePiece model, or a folder with one: writes tokens "
                 "(default: a text stays text, JSON lines become tokens of bytes)");
  prepare
      .option("--format", options->format,
              "What the source is (default: jsonl where its name says .jsonl or .ndjson)")
      .one_of({"text", "jsonl"});
  prepare.footer(
      "JSON lines have \"text\"; or \"prompt\" and \"completion\", or \"messages\", of which only "
      "what the\nmodel is to say is trained on. Beside tokens stand FILE.json, which says what "
      "they are,\nFILE.mask, and of JSON lines FILE.documents. Stopped at any time, the same "
      "command goes on.\n\n"
      "Example:\n"
      "  isthmus data prepare book.txt.gz --train data/en.bin --held-out data/en.held.bin\n"
      "  isthmus data prepare chats.jsonl.zst --tokenizer models/qwen3 --train data/chats.bin");
  command.footer(
      "Example:\n  isthmus data prepare book.txt.gz --train data/en.bin --held-out "
      "data/en.held.bin");
  prepare.runs([options] { return run(*options); });
}

}  // namespace isthmus::launcher

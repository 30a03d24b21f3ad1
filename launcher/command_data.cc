#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "base/counted.h"
#include "base/disk.h"
#include "launcher/command.h"
#include "launcher/units.h"
#include "runtime/text_corpus.h"

namespace isthmus::launcher {
namespace {

struct Options {
  std::string source;
  std::string train;
  std::string held_out;
};

ExitCode run(const Options& options) {
  const auto disk = make_system_disk();
  for (const auto& path : {options.train, options.held_out})
    if (!folder_of(path).empty())
      if (auto made = disk->make_folders(folder_of(path)); !made) return fail(made.error());
  const auto prepared =
      runtime::prepare_text(*disk, options.source, options.train, options.held_out);
  if (!prepared) return fail(prepared.error());
  fmt::print("{}: {}; {} to train on in {}, {} held out in {}\n", options.source,
             counted(prepared->paragraphs, "paragraph"),
             about_bytes(static_cast<double>(prepared->train_bytes)), options.train,
             about_bytes(static_cast<double>(prepared->held_out_bytes)), options.held_out);
  return ExitCode::done;
}

}  // namespace

void add_data(Command program) {
  const auto command = program.subcommand("data", "Prepare text to train on");
  const auto prepare = command.subcommand(
      "prepare", "Split a text, plain or gzipped: every 20th paragraph is held out");
  const auto options = std::make_shared<Options>();
  prepare.option("SOURCE", options->source, "The text").required();
  prepare.option("--train", options->train, "Where the part to train on goes").required();
  prepare.option("--held-out", options->held_out, "Where the held-out part goes").required();
  constexpr auto kExample =
      "Example:\n  isthmus data prepare book.txt.gz --train data/en.bin --held-out "
      "data/en.held.bin";
  prepare.footer(kExample);
  command.footer(kExample);
  prepare.runs([options] { return run(*options); });
}

}  // namespace isthmus::launcher

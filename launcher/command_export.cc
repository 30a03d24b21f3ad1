#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "base/disk.h"
#include "launcher/command.h"
#include "launcher/rank_setup.h"
#include "launcher/site_check.h"
#include "launcher/units.h"
#include "runtime/model_export.h"

namespace isthmus::launcher {
namespace {

struct ExportArguments {
  SiteArguments site;
  std::string destination;
  ModelArguments model;
  std::string dtype = "f32", file_size = "5 GiB";
};

Result<runtime::ExportOptions> wish_of(const ExportArguments& options) {
  runtime::ExportOptions wish;
  for (const auto& type : runtime::stored_dtypes())
    if (type.name == options.dtype) wish.dtype = type.dtype;
  ISTHMUS_TRY(const auto bytes, parse_bytes(options.file_size));
  if (bytes < 1) return Error{ErrorCode::invalid_argument, "--file-size must be at least \"1 B\""};
  wish.file_bytes_max = static_cast<std::uint64_t>(bytes);
  return wish;
}

Result<void> export_from(const ExportArguments& options) {
  ISTHMUS_TRY(const auto wish, wish_of(options));
  ISTHMUS_TRY(const auto file, load_site(options.site.paths.front(), options.site.overrides));
  const auto disk = make_system_disk();
  ISTHMUS_TRY(const auto source, trained_model_of(file, *disk, options.model));
  ISTHMUS_CHECK(runtime::export_model(*disk, source, options.destination, wish));
  fmt::print("{}: the model in {}\n", options.destination, options.dtype);
  return {};
}

}  // namespace

void add_export(Command program) {
  const auto command = program.subcommand(
      "export", "Write a site's model as a Hugging Face directory for other programs");
  const auto options = std::make_shared<ExportArguments>();
  add_site_arguments(command, options->site, HowManySites::one);
  command.option("--to", options->destination, "A new folder").required();
  add_model_arguments(command, options->model);
  std::vector<std::string> dtypes;
  for (const auto& type : runtime::stored_dtypes()) dtypes.emplace_back(type.name);
  command.option("--dtype", options->dtype, "Of the parameters in it")
      .one_of(dtypes)
      .shows_default();
  command
      .option("--file-size", options->file_size,
              "Of a file, at most; a model that is larger is cut into several")
      .shows_default();
  command.footer(
      "transformers loads the folder as it is.\n\nExample:\n  isthmus export alpha.toml "
      "--to model-bf16 --dtype bf16");
  command.runs([options] {
    const auto done = export_from(*options);
    return done ? ExitCode::done : fail(done.error());
  });
}

}  // namespace isthmus::launcher

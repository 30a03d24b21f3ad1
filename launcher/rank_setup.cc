#include "launcher/rank_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "launcher/run_folder.h"
#include "runtime/byte_tokenizer.h"
#include "runtime/checkpoint.h"
#include "runtime/checkpoint_folder.h"
#include "runtime/model_directory.h"

namespace isthmus::launcher {

std::vector<int> rank_cpus(const SiteFile& file, int rank, int available) {
  const auto ranks = static_cast<std::size_t>(file.mesh.ranks());
  const auto threads = static_cast<std::size_t>(file.train.threads);
  const auto& cpus = file.train.cpus;
  if (cpus.empty()) {
    const auto fair = std::max<std::size_t>(1, static_cast<std::size_t>(available) / ranks);
    return std::vector<int>(threads == 0 ? fair : threads, -1);
  }
  const auto share = cpus.size() / ranks;
  const auto first =
      cpus.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank) * share);
  const auto count = threads == 0 ? share : std::min(share, threads);
  return {first, first + static_cast<std::ptrdiff_t>(count)};
}

runtime::BatchShape training_shape(const SiteFile& file) {
  return {.micro_batch = file.train.micro_batch,
          .sequence = file.train.sequence,
          .precision = file.train.precision,
          .recompute = file.train.recompute,
          .documents = file.data.documents,
          .router = file.experts};
}

runtime::BatchShape evaluation_shape(const SiteFile& file) {
  return {.micro_batch = 1,
          .sequence = file.train.sequence,
          .precision = runtime::Precision::f32,
          .documents = file.data.documents};
}

std::vector<runtime::TextSource> text_sources(const SiteFile& file) {
  std::vector<runtime::TextSource> sources;
  for (const auto& text : file.data.train) sources.push_back({text.path, text.weight});
  return sources;
}

Result<std::unique_ptr<runtime::Tokenizer>> site_tokenizer(const SiteFile& file, const Disk& disk) {
  if (!file.model.tokenizer.empty()) return runtime::open_tokenizer(disk, file.model.tokenizer);
  if (!file.model.from.empty())
    for (const auto* name : {"tokenizer.json", "tokenizer.model"}) {
      ISTHMUS_TRY(const bool is_there, disk.exists(file.model.from + "/" + name));
      if (is_there) return runtime::open_tokenizer(disk, file.model.from);
    }
  return runtime::make_byte_tokenizer();
}

runtime::TokenFormat token_format(const SiteFile& file, const runtime::Tokenizer& tokenizer,
                                  std::int64_t vocabulary) {
  using runtime::TokenWidth;
  const auto fitting =
      is_byte_tokenizer(tokenizer) ? TokenWidth::byte : runtime::width_for(vocabulary);
  return {.width = file.data.dtype == TokenDtype::uint16   ? TokenWidth::two
                   : file.data.dtype == TokenDtype::uint32 ? TokenWidth::four
                                                           : fitting,
          .vocabulary = static_cast<std::int32_t>(vocabulary),
          .tokenizer = tokenizer.digest().hex(),
          .end = tokenizer.end()};
}

std::string tokenizer_settings(const runtime::Tokenizer& tokenizer) {
  constexpr std::size_t kDigits = 32;
  if (is_byte_tokenizer(tokenizer)) return {};
  return fmt::format(", tokenizer {}", tokenizer.digest().hex().substr(0, kDigits));
}

Result<std::string> trained_model_of(const SiteFile& file, Disk& disk, const ModelArguments& wish) {
  if (!wish.checkpoint.empty()) return wish.checkpoint;
  const auto folder = RunFolder(file.site.run_dir).checkpoints();
  ISTHMUS_TRY(const auto steps, runtime::list_checkpoints(disk, folder));
  if (!steps.empty() && wish.best) return runtime::best_checkpoint(disk, folder);
  if (!steps.empty()) return folder;
  return Error{
      ErrorCode::not_found,
      fmt::format("site {} has no checkpoint in {} yet: launch it first", file.site.name, folder)};
}

Result<std::unique_ptr<runtime::Model>> make_initial_model(const SiteFile& file,
                                                           const runtime::BatchShape& shape,
                                                           Disk& disk, ThreadPool& pool) {
  if (!file.lora.from.empty()) {
    ISTHMUS_TRY(const auto adapter, runtime::model_directory(disk, file.lora.from));
    return runtime::open_adapted_model(disk, adapter, file.model.from, shape, pool);
  }
  if (!file.model.from.empty()) return runtime::open_model(disk, file.model.from, shape, pool);
  ISTHMUS_TRY(auto model, runtime::Model::create(file.model.config, shape, pool));
  model->initialise(static_cast<std::uint64_t>(file.model.seed));
  return model;
}

Result<std::unique_ptr<runtime::Model>> make_training_model(const SiteFile& file, Disk& disk,
                                                            ThreadPool& pool) {
  auto tuning = file.fine_tuning();
  const auto shape = training_shape(file);
  const auto seed = static_cast<std::uint64_t>(file.model.seed);
  if (file.model.from.empty()) {
    ISTHMUS_TRY(auto model, runtime::Model::create(file.model.config, shape, pool, tuning));
    model->initialise(seed);
    return model;
  }
  ISTHMUS_TRY(tuning.base, runtime::model_directory(disk, file.model.from));
  ISTHMUS_TRY(auto model, runtime::open_model(disk, tuning.base, shape, pool, tuning));
  if (tuning.lora.rank > 0) model->initialise_trained(seed);
  if (!file.lora.from.empty()) {
    ISTHMUS_TRY(const auto adapter, runtime::model_directory(disk, file.lora.from));
    ISTHMUS_CHECK(runtime::load_adapter(disk, adapter, *model));
  }
  return model;
}

}  // namespace isthmus::launcher

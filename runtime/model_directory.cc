#include "runtime/model_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/byte_stream.h"
#include "runtime/canonical_tensor.h"
#include "runtime/checkpoint_folder.h"
#include "runtime/family.h"
#include "runtime/model_description.h"
#include "runtime/stored_model.h"
#include "runtime/trainer_file.h"

namespace isthmus::runtime {
namespace {

constexpr std::uint64_t kConfigBytesMax = std::uint64_t{16} << 20;

}  // namespace

Result<std::string> model_directory(const Disk& disk, const std::string& path) {
  ISTHMUS_TRY(const auto steps, list_checkpoints(disk, path));
  return steps.empty() ? path : path + "/" + checkpoint_name(steps.back());
}

Result<void> check_same(const ModelConfig& a, const ModelConfig& b, const std::string& checkpoint) {
  const auto differs = [&](std::string_view what, const auto& theirs, const auto& ours) {
    return Error{ErrorCode::mismatch,
                 fmt::format("{} is of another model: its {} is {}, the model of this run has {}; "
                             "give the run a folder of its own, or the model of the checkpoint",
                             checkpoint, what, theirs, ours)};
  };
  if (a.family != b.family) return differs("family", a.family, b.family);
  if (a.layers != b.layers) return differs("number of layers", a.layers, b.layers);
  if (a.hidden != b.hidden) return differs("hidden size", a.hidden, b.hidden);
  if (a.heads != b.heads) return differs("number of heads", a.heads, b.heads);
  if (a.kv_heads != b.kv_heads) return differs("number of key/value heads", a.kv_heads, b.kv_heads);
  if (a.head_elements() != b.head_elements())
    return differs("size of a head", a.head_elements(), b.head_elements());
  if (a.ffn_width != b.ffn_width) return differs("ffn width", a.ffn_width, b.ffn_width);
  if (a.vocabulary != b.vocabulary) return differs("vocabulary", a.vocabulary, b.vocabulary);
  if (a.experts != b.experts) return differs("number of experts", a.experts, b.experts);
  if (a.experts_per_token != b.experts_per_token)
    return differs("number of experts per token", a.experts_per_token, b.experts_per_token);
  if (a.expert_elements() != b.expert_elements())
    return differs("width of an expert", a.expert_elements(), b.expert_elements());
  if (a.shared_expert_width != b.shared_expert_width)
    return differs("width of the shared expert", a.shared_expert_width, b.shared_expert_width);
  if (a.token_types != b.token_types)
    return differs("number of token types", a.token_types, b.token_types);
  if (a.normalise_top_k != b.normalise_top_k)
    return differs("normalising of experts' weights", a.normalise_top_k, b.normalise_top_k);
  if (a.dense_layers != b.dense_layers)
    return differs("list of dense layers", fmt::format("{}", fmt::join(a.dense_layers, ",")),
                   fmt::format("{}", fmt::join(b.dense_layers, ",")));
  if (a.tied != b.tied) return differs("tying of the head", a.tied, b.tied);
  if (a.rope_theta != b.rope_theta) return differs("rope_theta", a.rope_theta, b.rope_theta);
  if (a.rope_scaling != b.rope_scaling)
    return differs("rope scaling", describe(a.rope_scaling), describe(b.rope_scaling));
  if (a.norm_eps != b.norm_eps) return differs("norm_eps", a.norm_eps, b.norm_eps);
  return {};
}

// Finds everything before it writes anything: a directory that does not fit leaves the model alone.
// Adapters lie elsewhere.
Result<void> read_parameters(Disk& disk, const std::string& directory, Model& model) {
  ISTHMUS_TRY(const auto stored, StoredModel::open(disk, directory));
  const bool has_adapters = model.fine_tuning().lora.rank > 0;
  std::vector<CanonicalTensor> tensors(model.tensors().begin(), model.tensors().end());
  if (has_adapters) std::erase_if(tensors, [](const auto& tensor) { return tensor.trains; });
  ISTHMUS_CHECK(stored.check(tensors));
  for (const auto& tensor : tensors)
    ISTHMUS_CHECK(stored.read(tensor, model.parameters().subspan(tensor.first, tensor.elements())));
  model.parameters_changed();
  return {};
}

Result<void> load_parameters(Disk& disk, const std::string& checkpoint, Model& model) {
  ISTHMUS_CHECK(check_as_written(disk, checkpoint));
  ISTHMUS_TRY(const auto config, read_model_config(disk, checkpoint));
  ISTHMUS_CHECK(check_same(config, model.config(), checkpoint));
  return read_parameters(disk, checkpoint, model);
}

Result<void> check_parameters(Disk& disk, const std::string& directory, const ModelConfig& config) {
  ISTHMUS_TRY(const auto stored, StoredModel::open(disk, directory));
  const BatchShape least{.micro_batch = 1, .sequence = 1};
  return stored.check(lay_out_parameters(build_program(config, least, Head::loss)).tensors);
}

Result<ModelConfig> read_model_config(Disk& disk, const std::string& directory) {
  ISTHMUS_TRY(const auto bytes, read_file(disk, directory + "/" + kConfigFile, kConfigBytesMax));
  auto config = from_config_json(text_of(bytes));
  if (!config)
    return Error{config.error().code, fmt::format("{} cannot be used", directory),
                 std::move(config).error()};
  return config;
}

namespace {

Result<StoredAdapter> checked_adapter(Disk& disk, const std::string& directory,
                                      const ModelConfig& config, const FineTuning& tuning) {
  ISTHMUS_CHECK(check_as_written(disk, directory));
  ISTHMUS_TRY(auto adapter, StoredAdapter::open(disk, directory));
  ISTHMUS_CHECK(adapter.check(config));
  const auto& theirs = adapter.description().lora;
  const auto& ours = tuning.lora;
  const FineTuning of_file{.frozen = {}, .lora = theirs, .base = {}};
  if (theirs.rank != ours.rank || theirs.alpha != ours.alpha ||
      adapted_modules(of_file, config) != adapted_modules(tuning, config))
    return Error{
        ErrorCode::mismatch,
        fmt::format("the adapter in {} has rank {}, alpha {} and {}; this run has rank {}, "
                    "alpha {} and {}: write the same in [lora], or give the run a folder "
                    "of its own",
                    directory, theirs.rank, theirs.alpha, fmt::join(theirs.targets, ", "),
                    ours.rank, ours.alpha, fmt::join(ours.targets, ", "))};
  return adapter;
}

}  // namespace

Result<void> check_adapter(Disk& disk, const std::string& path, const ModelConfig& config,
                           const FineTuning& tuning) {
  ISTHMUS_TRY(const auto directory, model_directory(disk, path));
  ISTHMUS_CHECK(checked_adapter(disk, directory, config, tuning));
  return {};
}

Result<void> load_adapter(Disk& disk, const std::string& directory, Model& model) {
  ISTHMUS_TRY(const auto adapter,
              checked_adapter(disk, directory, model.config(), model.fine_tuning()));
  for (std::size_t i = 0; i < model.tensors().size(); ++i)
    if (model.tensors()[i].trains)
      ISTHMUS_CHECK(adapter.read(model.tensors()[i], model.parameters(i)));
  model.parameters_changed();
  return {};
}

Result<std::string> base_of_adapter(const Disk& disk, const std::string& directory,
                                    const AdapterDescription& description) {
  const auto refused = [&](std::string what) {
    return Error{ErrorCode::not_found,
                 fmt::format("the adapter in {} belongs to a model {}: write its directory into "
                             "base_model_name_or_path of {} there",
                             directory, what, kAdapterConfigFile)};
  };
  if (description.base.empty()) return refused("that it does not name");
  ISTHMUS_TRY(const bool there, disk.exists(description.base + "/" + kConfigFile));
  if (!there) return refused(fmt::format("in {}, where there is none", description.base));
  ISTHMUS_TRY(const bool adapter, holds_adapter(disk, description.base));
  if (adapter) return refused(fmt::format("in {}, which is an adapter itself", description.base));
  return description.base;
}

namespace {

Result<std::unique_ptr<Model>> open_directory(Disk& disk, const std::string& directory,
                                              const BatchShape& shape, ThreadPool& pool,
                                              const FineTuning& tuning) {
  ISTHMUS_TRY(const bool has_adapter, holds_adapter(disk, directory));
  if (has_adapter && !tuning.all_trains())
    return Error{
        ErrorCode::unsupported,
        fmt::format("{} is an adapter: to train it further name its base in model.from and "
                    "it in lora.from, or merge the two first (isthmus export)",
                    directory)};
  if (has_adapter) {
    ISTHMUS_TRY(const auto adapter, StoredAdapter::open(disk, directory));
    ISTHMUS_TRY(const auto base, base_of_adapter(disk, directory, adapter.description()));
    return open_adapted_model(disk, directory, base, shape, pool);
  }
  ISTHMUS_TRY(const auto config, read_model_config(disk, directory));
  ISTHMUS_TRY(auto model, Model::create(config, shape, pool, tuning));
  ISTHMUS_CHECK(load_parameters(disk, directory, *model));
  return model;
}

}  // namespace

Result<std::unique_ptr<Model>> open_adapted_model(Disk& disk, const std::string& adapter_directory,
                                                  const std::string& base, const BatchShape& shape,
                                                  ThreadPool& pool) {
  ISTHMUS_CHECK(check_as_written(disk, adapter_directory));
  ISTHMUS_TRY(const auto adapter, StoredAdapter::open(disk, adapter_directory));
  ISTHMUS_TRY(auto model, open_model(disk, base, shape, pool));
  ISTHMUS_CHECK(adapter.check(model->config()));
  for (std::size_t i = 0; i < model->tensors().size(); ++i)
    ISTHMUS_CHECK(adapter.merge_into(model->tensors()[i], model->parameters(i)));
  model->parameters_changed();
  return model;
}

Result<std::unique_ptr<Model>> open_model(Disk& disk, const std::string& path,
                                          const BatchShape& shape, ThreadPool& pool,
                                          const FineTuning& tuning) {
  ISTHMUS_TRY(const auto steps, list_checkpoints(disk, path));
  if (steps.empty()) return open_directory(disk, path, shape, pool, tuning);
  auto model =
      open_directory(disk, path + "/" + checkpoint_name(steps.back()), shape, pool, tuning);
  if (model || model.error().code != ErrorCode::corrupt || steps.size() == 1) return model;
  return Error{ErrorCode::corrupt,
               fmt::format("the newest checkpoint is damaged; the one before it is {}/{}", path,
                           checkpoint_name(steps[steps.size() - 2])),
               std::move(model).error()};
}

}  // namespace isthmus::runtime

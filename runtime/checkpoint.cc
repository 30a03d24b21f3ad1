#include "runtime/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "base/assert.h"
#include "base/byte_stream.h"
#include "runtime/adapter.h"
#include "runtime/canonical_tensor.h"
#include "runtime/family.h"
#include "runtime/model_description.h"
#include "runtime/safetensors.h"
#include "runtime/stored_model.h"
#include "runtime/trainer_file.h"
#include "security/hash.h"

namespace isthmus::runtime {
namespace {

constexpr const char* kTrainerFile = "trainer.json";

constexpr std::string_view kStepPrefix = "step_";
constexpr std::string_view kWritingPrefix = ".writing_";
constexpr std::string_view kRemovingPrefix = ".removing_";
constexpr std::string_view kReplacedSuffix = ".old";
constexpr std::string_view kDamagedSuffix = ".damaged";

constexpr std::string_view kFirstMoment = "first_moment.";
constexpr std::string_view kSecondMoment = "second_moment.";
constexpr std::string_view kBase = "base.";
constexpr std::string_view kContributed = "contributed.";

constexpr std::uint64_t kCheckpointJsonBytesMax = std::uint64_t{16} << 20;
constexpr std::size_t kHashPieceBytes = std::size_t{1} << 20;

std::string name_of(std::int64_t step) { return fmt::format("{}{:08}", kStepPrefix, step); }

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  name.remove_prefix(kStepPrefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc{} || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

// Disk removes files only: folders are nobody's but ours, and not part of what is simulated.
Result<void> remove_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) return error_of_errno(error.value(), fmt::format("cannot remove {}", path));
  return {};
}

Result<FileIdentity> identity_of(Disk& disk, const std::string& path) {
  ISTHMUS_TRY(const auto file, disk.open(path, Disk::Open::read));
  FileIdentity identity;
  ISTHMUS_TRY(identity.bytes, file->size());
  security::Hasher hasher;
  Bytes piece(kHashPieceBytes);
  for (std::uint64_t at = 0; at < identity.bytes; at += piece.size()) {
    const auto part =
        std::span(piece).first(std::min<std::uint64_t>(piece.size(), identity.bytes - at));
    ISTHMUS_CHECK(file->read_at(at, part));
    hasher.update(part);
  }
  identity.digest = hasher.finish().hex();
  return identity;
}

Result<TrainerFile> read_trainer_file(Disk& disk, const std::string& checkpoint) {
  const std::string path = checkpoint + "/" + kTrainerFile;
  const auto bytes = read_file(disk, path, kCheckpointJsonBytesMax);
  auto content = bytes ? decode_trainer_file(text_of(*bytes)) : Result<TrainerFile>(bytes.error());
  if (content) return content;
  // Without this file a folder with a checkpoint's name is none any more.
  const auto code =
      content.error().code == ErrorCode::not_found ? ErrorCode::corrupt : content.error().code;
  return Error{code, fmt::format("{} cannot be used", path), std::move(content).error()};
}

Result<void> check_file(Disk& disk, const std::string& path, const FileIdentity& expected) {
  auto found = identity_of(disk, path);
  if (!found) {
    const auto code =
        found.error().code == ErrorCode::not_found ? ErrorCode::corrupt : found.error().code;
    return Error{code, fmt::format("{} cannot be read", path), std::move(found).error()};
  }
  if (found->bytes != expected.bytes)
    return Error{ErrorCode::corrupt, fmt::format("{} has {} bytes, but {} were written: it was "
                                                 "cut short or overwritten",
                                                 path, found->bytes, expected.bytes)};
  if (*found != expected)
    return Error{ErrorCode::corrupt,
                 fmt::format("{} is damaged: its checksum is not that of what was written", path)};
  return {};
}

// Whether the files are what trainer.json says was written.
Result<void> check_files(Disk& disk, const std::string& checkpoint, const TrainerFile& trainer) {
  for (const auto& [name, identity] : trainer.files)
    ISTHMUS_CHECK(check_file(disk, checkpoint + "/" + name, identity));
  return {};
}

// ---- tensors

Result<void> write_model(Disk& disk, const std::string& path, Model& model) {
  std::vector<TensorToStore> tensors;
  for (std::size_t i = 0; i < model.tensors().size(); ++i)
    tensors.push_back({model.tensors()[i].name, model.tensors()[i].shape, model.parameters(i)});
  return write_safetensors(disk, path, tensors, {{"format", "pt"}});
}

Result<void> write_optimizer(Disk& disk, const std::string& path, Model& model) {
  std::vector<TensorToStore> tensors;
  for (std::size_t i = 0; i < model.tensors().size(); ++i) {
    const auto& t = model.tensors()[i];
    if (!t.trains) continue;
    tensors.push_back({std::string(kFirstMoment) + t.name, t.shape, model.first_moments(i)});
    tensors.push_back({std::string(kSecondMoment) + t.name, t.shape, model.second_moments(i)});
  }
  return write_safetensors(disk, path, tensors, {});
}

// The tensors that train in canonical parameters, one after the other.
void add_tensors(std::string_view prefix, const Model& model, std::span<const float> values,
                 std::vector<TensorToStore>& out) {
  for (const auto& t : model.tensors()) {
    if (values.empty()) return;
    if (!t.trains) continue;
    out.push_back({std::string(prefix) + t.name, t.shape, values.first(t.elements())});
    values = values.subspan(t.elements());
  }
}

Result<void> write_trained_on(Disk& disk, const std::string& path, const Model& model,
                              const TrainedOn& trained_on) {
  std::vector<TensorToStore> tensors;
  add_tensors(kBase, model, trained_on.base, tensors);
  add_tensors(kContributed, model, trained_on.contributed, tensors);
  return write_safetensors(disk, path, tensors, {});
}

// The tensor of this name and shape, or why there is none.
Result<const StoredTensor*> find(const SafetensorsReader& reader, const std::string& path,
                                 const std::string& name, const Shape& shape) {
  const StoredTensor* stored = reader.find(name);
  if (stored == nullptr)
    return Error{ErrorCode::mismatch, fmt::format("{} has no tensor {}", path, name)};
  if (auto fits = check_shape(*stored, shape); !fits)
    return Error{fits.error().code, fmt::format("{}: {}", path, fits.error().message)};
  return stored;
}

// Finds everything before it writes anything: a directory that does not fit leaves the model alone.
// Adapters lie elsewhere.
Result<void> read_model(Disk& disk, const std::string& directory, Model& model) {
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

Result<void> read_optimizer(Disk& disk, const std::string& path, Model& model) {
  ISTHMUS_TRY(const auto reader, SafetensorsReader::open(disk, path));
  for (std::size_t i = 0; i < model.tensors().size(); ++i) {
    const auto& t = model.tensors()[i];
    if (!t.trains) continue;
    ISTHMUS_TRY(const auto* first, find(reader, path, std::string(kFirstMoment) + t.name, t.shape));
    ISTHMUS_TRY(const auto* second,
                find(reader, path, std::string(kSecondMoment) + t.name, t.shape));
    ISTHMUS_CHECK(reader.read_finite(*first, model.first_moments(i)));
    ISTHMUS_CHECK(reader.read_finite(*second, model.second_moments(i)));
  }
  return {};
}

// Canonical parameters; empty when the file has none of this prefix.
Result<std::vector<float>> read_tensors(const SafetensorsReader& reader, const std::string& path,
                                        std::string_view prefix, const Model& model) {
  std::vector<float> values;
  const auto has_prefix = [&](const auto& stored) { return stored.name.starts_with(prefix); };
  if (std::ranges::none_of(reader.tensors(), has_prefix)) return values;
  std::size_t elements = 0;
  for (const auto& t : model.tensors())
    if (t.trains) elements += t.elements();
  values.reserve(elements);
  for (const auto& t : model.tensors()) {
    if (!t.trains) continue;
    ISTHMUS_TRY(const auto* stored, find(reader, path, std::string(prefix) + t.name, t.shape));
    values.resize(values.size() + t.elements());
    ISTHMUS_CHECK(reader.read_finite(*stored, std::span(values).last(t.elements())));
  }
  return values;
}

// ---- folders

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
  if (a.tied != b.tied) return differs("tying of the head", a.tied, b.tied);
  if (a.rope_theta != b.rope_theta) return differs("rope_theta", a.rope_theta, b.rope_theta);
  if (a.rope_scaling != b.rope_scaling)
    return differs("rope scaling", describe(a.rope_scaling), describe(b.rope_scaling));
  if (a.norm_eps != b.norm_eps) return differs("norm_eps", a.norm_eps, b.norm_eps);
  return {};
}

// Gives a written folder its name. One of the same step may be there, from another outer step or
// from before a restart: the two change places, so that a crash leaves either.
Result<void> publish(Disk& disk, const std::string& writing, const std::string& checkpoint) {
  ISTHMUS_TRY(const bool exists, disk.exists(checkpoint));
  if (!exists) return disk.rename(writing, checkpoint);
  if (::renameat2(AT_FDCWD, writing.c_str(), AT_FDCWD, checkpoint.c_str(), RENAME_EXCHANGE) != 0) {
    if (errno != EINVAL && errno != ENOSYS)
      return error_of_errno(errno, fmt::format("cannot replace {}", checkpoint));
    // A file system that cannot exchange: for a moment neither has its name (restore_replaced).
    const std::string old = writing + std::string(kReplacedSuffix);
    ISTHMUS_CHECK(remove_folder(old));
    ISTHMUS_CHECK(disk.rename(checkpoint, old));
    ISTHMUS_CHECK(disk.rename(writing, checkpoint));
    return remove_folder(old);
  }
  return remove_folder(writing);
}

// A crash in publish() may have left a checkpoint under the name it had while another took its
// place.
Result<void> restore_replaced(Disk& disk, const std::string& folder) {
  ISTHMUS_TRY(const bool any, disk.exists(folder));
  if (!any) return {};
  ISTHMUS_TRY(const auto names, disk.list(folder));
  for (std::string_view name : names) {
    if (!name.starts_with(kWritingPrefix) || !name.ends_with(kReplacedSuffix)) continue;
    auto original = name.substr(kWritingPrefix.size());
    original.remove_suffix(kReplacedSuffix.size());
    const auto path = fmt::format("{}/{}", folder, original);
    ISTHMUS_TRY(const bool there, disk.exists(path));
    if (!there) ISTHMUS_CHECK(disk.rename(fmt::format("{}/{}", folder, name), path));
  }
  return {};
}

// Old checkpoints are renamed before they are emptied, so that no half of one looks like a whole.
Result<void> remove_all_but_newest(Disk& disk, const std::string& folder, int keep,
                                   std::int64_t best) {
  ISTHMUS_TRY(const auto steps, list_checkpoints(disk, folder));
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < steps.size(); ++i) {
    if (steps[i] == best) continue;
    const auto hidden = fmt::format("{}/{}{}", folder, kRemovingPrefix, name_of(steps[i]));
    ISTHMUS_CHECK(remove_folder(hidden));
    ISTHMUS_CHECK(disk.rename(folder + "/" + name_of(steps[i]), hidden));
  }
  ISTHMUS_TRY(const auto names, disk.list(folder));
  for (const auto& name : names)
    if (name.starts_with(kRemovingPrefix) || name.starts_with(kWritingPrefix))
      ISTHMUS_CHECK(remove_folder(folder + "/" + name));
  return {};
}

// All files of one, synced.
Result<void> write_files(Disk& disk, const std::string& writing, Model& model,
                         const Progress& progress, const TrainedOn& trained_on) {
  ISTHMUS_CHECK(disk.make_folders(writing));
  ISTHMUS_CHECK(
      replace_file(disk, writing + "/" + kConfigFile, bytes_of(to_config_json(model.config()))));
  std::vector<const char*> files = {kConfigFile, kOptimizerFile};
  if (model.fine_tuning().lora.rank > 0) {
    ISTHMUS_CHECK(write_adapter(disk, writing, model));
    files.insert(files.end(), {kAdapterConfigFile, kAdapterFile});
  } else {
    ISTHMUS_CHECK(write_model(disk, writing + "/" + kModelFile, model));
    files.push_back(kModelFile);
  }
  ISTHMUS_CHECK(write_optimizer(disk, writing + "/" + kOptimizerFile, model));
  TrainerFile trainer{
      .progress = progress, .updates = model.updates(), .files = {}, .trained_on = {}};
  if (!trained_on.empty()) {
    const std::string path = writing + "/" + kTrainedOnFile;
    ISTHMUS_CHECK(write_trained_on(disk, path, model, trained_on));
    ISTHMUS_TRY(trainer.trained_on, identity_of(disk, path));
  }
  for (const auto* file : files) {
    ISTHMUS_TRY(trainer.files[file], identity_of(disk, writing + "/" + file));
  }
  ISTHMUS_CHECK(replace_file(disk, writing + "/" + kTrainerFile, bytes_of(encode(trainer))));
  return disk.sync_folder(writing);
}

}  // namespace

Result<std::string> write_checkpoint(Disk& disk, const std::string& folder, Model& model,
                                     const Progress& progress, int keep,
                                     const TrainedOn& trained_on) {
  ISTHMUS_ASSERT(keep >= 1);
  const auto name = name_of(progress.inner_step);
  const std::string checkpoint = folder + "/" + name;
  ISTHMUS_TRY(const bool complete, trained_on.empty()
                                       ? Result<bool>(true)
                                       : disk.exists(checkpoint + "/" + kTrainedOnFile));
  if (const auto there = read_trainer_file(disk, checkpoint);
      complete && there && there->progress == progress)
    return checkpoint;
  const auto writing = fmt::format("{}/{}{}", folder, kWritingPrefix, name);
  ISTHMUS_CHECK(remove_folder(writing));
  if (const auto written = write_files(disk, writing, model, progress, trained_on); !written) {
    // The gateway needs the room more, which half of a checkpoint takes.
    (void)remove_folder(writing);
    return written.error();
  }
  ISTHMUS_CHECK(publish(disk, writing, checkpoint));
  ISTHMUS_CHECK(disk.sync_folder(folder));
  ISTHMUS_CHECK(remove_all_but_newest(disk, folder, keep, progress.best_step));
  return checkpoint;
}

namespace {

Result<TrainedOn> read_checked(Disk& disk, const std::string& checkpoint, const Model& model) {
  const auto path = checkpoint + "/" + kTrainedOnFile;
  ISTHMUS_TRY(const auto trainer, read_trainer_file(disk, checkpoint));
  if (!trainer.trained_on)
    return Error{ErrorCode::corrupt, fmt::format("{} is of another checkpoint", path)};
  ISTHMUS_CHECK(check_file(disk, path, *trainer.trained_on));
  ISTHMUS_TRY(const auto reader, SafetensorsReader::open(disk, path));
  TrainedOn trained_on;
  ISTHMUS_TRY(trained_on.base, read_tensors(reader, path, kBase, model));
  ISTHMUS_TRY(trained_on.contributed, read_tensors(reader, path, kContributed, model));
  return trained_on;
}

}  // namespace

Result<TrainedOn> read_trained_on(Disk& disk, const std::string& folder, std::int64_t inner_step,
                                  const Model& model, EventLog& log) {
  const auto checkpoint = fmt::format("{}/{}", folder, name_of(inner_step));
  ISTHMUS_TRY(const bool there, disk.exists(checkpoint + "/" + kTrainedOnFile));
  if (!there) return TrainedOn();
  auto trained_on = read_checked(disk, checkpoint, model);
  if (trained_on || trained_on.error().code == ErrorCode::io) return trained_on;
  log.warning("checkpoint_damaged", {},
              {{"checkpoint", checkpoint},
               {"why", trained_on.error().text()},
               {"then",
                "the rest of it is whole; what is in no contribution yet is lost unless the run "
                "goes on from the same outer step"}});
  return TrainedOn();
}

Result<void> forget_trained_on(Disk& disk, const std::string& folder, std::int64_t inner_step) {
  const auto checkpoint = fmt::format("{}/{}", folder, name_of(inner_step));
  const auto path = fmt::format("{}/{}", checkpoint, kTrainedOnFile);
  ISTHMUS_TRY(const bool there, disk.exists(path));
  if (!there) return {};
  ISTHMUS_CHECK(disk.remove(path));
  return disk.sync_folder(checkpoint);
}

Result<std::vector<std::int64_t>> list_checkpoints(const Disk& disk, const std::string& folder) {
  std::vector<std::int64_t> steps;
  ISTHMUS_TRY(const bool exists, disk.exists(folder));
  if (!exists) return steps;
  ISTHMUS_TRY(const auto names, disk.list(folder));
  for (const auto& name : names)
    if (const auto step = step_of(name)) steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
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

Result<Progress> load_checkpoint(Disk& disk, const std::string& checkpoint, Model& model) {
  ISTHMUS_TRY(const auto trainer, read_trainer_file(disk, checkpoint));
  ISTHMUS_CHECK(check_files(disk, checkpoint, trainer));
  ISTHMUS_TRY(const auto config, read_model_config(disk, checkpoint));
  ISTHMUS_CHECK(check_same(config, model.config(), checkpoint));
  ISTHMUS_TRY(const bool has_adapter, holds_adapter(disk, checkpoint));
  if (has_adapter != (model.fine_tuning().lora.rank > 0))
    return Error{
        ErrorCode::mismatch,
        fmt::format("{} is of a run {} adapters, this run is {}: give it a folder of its own",
                    checkpoint, has_adapter ? "with" : "without",
                    has_adapter ? "without" : "with")};
  if (has_adapter)
    ISTHMUS_CHECK(load_adapter(disk, checkpoint, model));
  else
    ISTHMUS_CHECK(read_model(disk, checkpoint, model));
  ISTHMUS_CHECK(read_optimizer(disk, checkpoint + "/" + kOptimizerFile, model));
  model.set_updates(trainer.updates);
  return trainer.progress;
}

Result<std::string> best_checkpoint(Disk& disk, const std::string& folder) {
  ISTHMUS_TRY(const auto steps, list_checkpoints(disk, folder));
  if (steps.empty())
    return Error{ErrorCode::not_found, fmt::format("there is no checkpoint in {}", folder)};
  ISTHMUS_TRY(const auto newest,
              read_trainer_file(disk, fmt::format("{}/{}", folder, name_of(steps.back()))));
  const auto best = newest.progress.best_step;
  if (best == 0)
    return Error{ErrorCode::not_found,
                 fmt::format("no checkpoint in {} is the best: with train.evaluate_every the "
                             "held-out loss is looked at while training goes on",
                             folder)};
  auto path = fmt::format("{}/{}", folder, name_of(best));
  if (std::ranges::find(steps, best) == steps.end())
    return Error{ErrorCode::not_found, fmt::format("{}, the best checkpoint, is gone", path)};
  return path;
}

Result<std::optional<Progress>> load_newest_checkpoint(Disk& disk, const std::string& folder,
                                                       Model& model, EventLog& log) {
  ISTHMUS_CHECK(restore_replaced(disk, folder));
  ISTHMUS_TRY(auto steps, list_checkpoints(disk, folder));
  std::optional<Error> newest_fault;
  std::vector<std::string> damaged;
  for (; !steps.empty(); steps.pop_back()) {
    const std::string checkpoint = folder + "/" + name_of(steps.back());
    auto progress = load_checkpoint(disk, checkpoint, model);
    if (progress) {
      for (const auto& path : damaged) {
        const std::string aside = path + std::string(kDamagedSuffix);
        ISTHMUS_CHECK(remove_folder(aside));
        ISTHMUS_CHECK(disk.rename(path, aside));
      }
      return std::optional(std::move(*progress));
    }
    if (progress.error().code != ErrorCode::corrupt) return std::move(progress).error();
    log.warning("checkpoint_damaged", {},
                {{"checkpoint", checkpoint},
                 {"why", progress.error().text()},
                 {"then", "an older one is used if there is one"}});
    damaged.push_back(checkpoint);
    if (!newest_fault) newest_fault = std::move(progress).error();
  }
  if (newest_fault)
    return Error{ErrorCode::corrupt,
                 fmt::format("no checkpoint in {} is whole; restore one from a copy, or move the "
                             "folder away to begin anew",
                             folder),
                 std::move(*newest_fault)};
  return std::optional<Progress>();
}

Result<std::string> model_directory(const Disk& disk, const std::string& path) {
  ISTHMUS_TRY(const auto steps, list_checkpoints(disk, path));
  return steps.empty() ? path : path + "/" + name_of(steps.back());
}

Result<void> check_as_written(Disk& disk, const std::string& directory) {
  ISTHMUS_TRY(const bool ours, disk.exists(directory + "/" + kTrainerFile));
  if (!ours) return {};
  ISTHMUS_TRY(const auto trainer, read_trainer_file(disk, directory));
  return check_files(disk, directory, trainer);
}

Result<void> load_parameters(Disk& disk, const std::string& checkpoint, Model& model) {
  ISTHMUS_CHECK(check_as_written(disk, checkpoint));
  ISTHMUS_TRY(const auto config, read_model_config(disk, checkpoint));
  ISTHMUS_CHECK(check_same(config, model.config(), checkpoint));
  return read_model(disk, checkpoint, model);
}

Result<void> check_parameters(Disk& disk, const std::string& checkpoint,
                              const ModelConfig& config) {
  ISTHMUS_TRY(const auto stored, StoredModel::open(disk, checkpoint));
  const BatchShape least{.micro_batch = 1, .sequence = 1};
  return stored.check(lay_out_parameters(build_program(config, least, Head::loss)).tensors);
}

Result<ModelConfig> read_model_config(Disk& disk, const std::string& checkpoint) {
  ISTHMUS_TRY(const auto bytes,
              read_file(disk, checkpoint + "/" + kConfigFile, kCheckpointJsonBytesMax));
  auto config = from_config_json(text_of(bytes));
  if (!config)
    return Error{config.error().code, fmt::format("{} cannot be used", checkpoint),
                 std::move(config).error()};
  return config;
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
  auto model = open_directory(disk, path + "/" + name_of(steps.back()), shape, pool, tuning);
  if (model || model.error().code != ErrorCode::corrupt || steps.size() == 1) return model;
  return Error{ErrorCode::corrupt,
               fmt::format("the newest checkpoint is damaged; the one before it is {}/{}", path,
                           name_of(steps[steps.size() - 2])),
               std::move(model).error()};
}

}  // namespace isthmus::runtime

#include "runtime/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.h"
#include "base/byte_stream.h"
#include "runtime/adapter.h"
#include "runtime/checkpoint_folder.h"
#include "runtime/model_description.h"
#include "runtime/model_directory.h"
#include "runtime/safetensors.h"
#include "runtime/trainer_file.h"

namespace isthmus::runtime {
namespace {

constexpr std::string_view kDamagedSuffix = ".damaged";

constexpr std::string_view kFirstMoment = "first_moment.";
constexpr std::string_view kSecondMoment = "second_moment.";
constexpr std::string_view kBase = "base.";
constexpr std::string_view kContributed = "contributed.";

// ---- tensors

Result<SafetensorsWriter> start_model(Disk& disk, const std::string& path, Model& model) {
  std::vector<TensorToStore> tensors;
  for (std::size_t i = 0; i < model.tensors().size(); ++i)
    tensors.push_back({model.tensors()[i].name, model.tensors()[i].shape, model.parameters(i)});
  return start_safetensors(disk, path, tensors, {{"format", "pt"}});
}

Result<SafetensorsWriter> start_optimizer(Disk& disk, const std::string& path, Model& model) {
  std::vector<TensorToStore> tensors;
  for (std::size_t i = 0; i < model.tensors().size(); ++i) {
    const auto& t = model.tensors()[i];
    if (!t.trains) continue;
    tensors.push_back({std::string(kFirstMoment) + t.name, t.shape, model.first_moments(i)});
    tensors.push_back({std::string(kSecondMoment) + t.name, t.shape, model.second_moments(i)});
  }
  return start_safetensors(disk, path, tensors, {});
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

// All files of one, synced.
Result<void> write_files(Disk& disk, const std::string& writing, Model& model,
                         const Progress& progress, const TrainedOn& trained_on,
                         const std::function<void()>& values_read) {
  ISTHMUS_CHECK(disk.make_folders(writing));
  ISTHMUS_CHECK(
      replace_file(disk, writing + "/" + kConfigFile, bytes_of(to_config_json(model.config()))));
  std::vector<const char*> files = {kConfigFile, kOptimizerFile};
  const bool has_adapter = model.fine_tuning().lora.rank > 0;
  ISTHMUS_TRY(auto parameters, has_adapter ? start_adapter(disk, writing, model)
                                           : start_model(disk, writing + "/" + kModelFile, model));
  if (has_adapter)
    files.insert(files.end(), {kAdapterConfigFile, kAdapterFile});
  else
    files.push_back(kModelFile);
  ISTHMUS_TRY(auto optimizer, start_optimizer(disk, writing + "/" + kOptimizerFile, model));
  TrainerFile trainer{
      .progress = progress, .updates = model.updates(), .files = {}, .trained_on = {}};
  if (values_read) values_read();
  ISTHMUS_CHECK(parameters.finish());
  ISTHMUS_CHECK(optimizer.finish());
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
                                     const TrainedOn& trained_on,
                                     const std::function<void()>& values_read) {
  ISTHMUS_ASSERT(keep >= 1);
  const std::string checkpoint = folder + "/" + checkpoint_name(progress.inner_step);
  ISTHMUS_TRY(const bool complete, trained_on.empty()
                                       ? Result<bool>(true)
                                       : disk.exists(checkpoint + "/" + kTrainedOnFile));
  if (const auto there = read_trainer_file(disk, checkpoint);
      complete && there && there->progress == progress)
    return checkpoint;
  ISTHMUS_CHECK(disk.make_folders(folder));
  ISTHMUS_CHECK(remove_unnamed(disk, folder));
  const auto writing = writing_folder(folder, progress.inner_step);
  auto written = write_files(disk, writing, model, progress, trained_on, values_read);
  if (written) written = publish_checkpoint(disk, folder, progress.inner_step);
  if (!written) {
    // The gateway needs the room more, which half of a checkpoint takes.
    (void)remove_unnamed(disk, folder);
    return std::move(written).error();
  }
  ISTHMUS_CHECK(disk.sync_folder(folder));
  ISTHMUS_CHECK(remove_old_checkpoints(disk, folder, keep, progress.best_step));
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
  const auto checkpoint = fmt::format("{}/{}", folder, checkpoint_name(inner_step));
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
  const auto checkpoint = fmt::format("{}/{}", folder, checkpoint_name(inner_step));
  const auto path = fmt::format("{}/{}", checkpoint, kTrainedOnFile);
  ISTHMUS_TRY(const bool there, disk.exists(path));
  if (!there) return {};
  ISTHMUS_CHECK(disk.remove(path));
  return disk.sync_folder(checkpoint);
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
    ISTHMUS_CHECK(read_parameters(disk, checkpoint, model));
  ISTHMUS_CHECK(read_optimizer(disk, checkpoint + "/" + kOptimizerFile, model));
  model.set_updates(trainer.updates);
  return trainer.progress;
}

Result<std::string> best_checkpoint(Disk& disk, const std::string& folder) {
  ISTHMUS_TRY(const auto steps, list_checkpoints(disk, folder));
  if (steps.empty())
    return Error{ErrorCode::not_found, fmt::format("there is no checkpoint in {}", folder)};
  ISTHMUS_TRY(const auto newest,
              read_trainer_file(disk, fmt::format("{}/{}", folder, checkpoint_name(steps.back()))));
  const auto best = newest.progress.best_step;
  if (best == 0)
    return Error{ErrorCode::not_found,
                 fmt::format("no checkpoint in {} is the best: with train.evaluate_every the "
                             "held-out loss is looked at while training goes on",
                             folder)};
  auto path = fmt::format("{}/{}", folder, checkpoint_name(best));
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
    const std::string checkpoint = folder + "/" + checkpoint_name(steps.back());
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

}  // namespace isthmus::runtime

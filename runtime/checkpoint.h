// Checkpoints: Hugging Face directories with the state of the inner optimizer and of the data
// beside them.
//
//   checkpoints/step_00000120/
//     config.json            what the model is                    ┐ transformers loads
//     model.safetensors      f32 parameters, canonical names      ┘ these as they are
//     optimizer.safetensors  first_moment.NAME, second_moment.NAME, of what trains
//     trained_on.safetensors base.NAME, contributed.NAME: only where a federated run was stopped
//     trainer.json           where training stands; size and BLAKE2b of the files above, and its
//                            own
//
// Where adapters train, adapter_config.json and adapter_model.safetensors, which PEFT loads, are
// there instead of model.safetensors (runtime/adapter.h).
//
// Written in a hidden folder, each file synced, then renamed: a name that starts with step_ is
// whole, unless a disk or somebody damaged it later, which loading notices before it changes the
// model. Nothing else is touched: one process writes a folder of checkpoints at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/disk.h"
#include "base/event_log.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "runtime/adapter.h"
#include "runtime/model.h"
#include "runtime/progress.h"

namespace isthmus::runtime {

// What the parameters of a federated run that is stopped were trained on (canonical order). Whoever
// goes on merges that work into a newer state, x ← state + (x − from), as if it had not been
// stopped. For once: work that is merged twice is counted twice.
struct TrainedOn {
  std::vector<float> base;         // the state: `from`, unless what was handed over is used
  std::vector<float> contributed;  // what was handed over for the next one; empty: nothing

  bool empty() const { return base.empty() && contributed.empty(); }
};

// Writes checkpoint `progress.inner_step` and removes all but the newest `keep` (at least 1) and
// the best (progress.best_step). Returns its folder; one of this step that is there already is
// replaced, unless it is the same. Errors: io, disk_full, permission.
Result<std::string> write_checkpoint(Disk& disk, const std::string& folder, Model& model,
                                     const Progress& progress, int keep,
                                     const TrainedOn& trained_on = {});

// Of the checkpoint of this step, loaded before into `model`; empty when it was not made at a stop,
// forgotten since, or, with a warning event, damaged: the checkpoint is whole without it. Errors:
// io.
Result<TrainedOn> read_trained_on(Disk& disk, const std::string& folder, std::int64_t inner_step,
                                  const Model& model, EventLog& log);
// Before anything is made of it that outlives this process. Errors: io, permission.
Result<void> forget_trained_on(Disk& disk, const std::string& folder, std::int64_t inner_step);

// The steps there are checkpoints of, ascending; empty when the folder is not there.
Result<std::vector<std::int64_t>> list_checkpoints(const Disk& disk, const std::string& folder);

// The one with the lowest held-out loss, as the newest says. Errors: not_found (it knows of none,
// or that is gone), corrupt, io.
Result<std::string> best_checkpoint(Disk& disk, const std::string& folder);

// Model, optimizer and progress of one checkpoint, checked as a whole first. Errors: corrupt (names
// the file), mismatch (another model; names the number that differs), not_found, io.
Result<Progress> load_checkpoint(Disk& disk, const std::string& checkpoint, Model& model);

// The newest checkpoint that is whole; nothing when there is none. One that is damaged is renamed
// to *.damaged, with a warning event, and the next older one taken. Errors: corrupt (all are
// damaged), mismatch, io.
Result<std::optional<Progress>> load_newest_checkpoint(Disk& disk, const std::string& folder,
                                                       Model& model, EventLog& log);

// The parameters of any Hugging Face directory; the optimizer starts afresh. Errors: corrupt,
// mismatch, unsupported, non_finite, not_found, io.
Result<void> load_parameters(Disk& disk, const std::string& checkpoint, Model& model);

// The adapters of a model that has them, from a directory of PEFT's or a checkpoint. Errors: those
// of StoredAdapter; mismatch (other adapters).
Result<void> load_adapter(Disk& disk, const std::string& directory, Model& model);
// Whether it could be, from there or from a folder of checkpoints.
Result<void> check_adapter(Disk& disk, const std::string& path, const ModelConfig& config,
                           const FineTuning& tuning);

// Whether load_parameters would find every tensor of this configuration, with its shape, and no
// other; values are read of a head alone that is stored beside an embedding that it should equal.
// Errors: as load_parameters.
Result<void> check_parameters(Disk& disk, const std::string& checkpoint, const ModelConfig& config);

// The configuration of a Hugging Face directory.
Result<ModelConfig> read_model_config(Disk& disk, const std::string& checkpoint);

// A Hugging Face directory itself; of a folder of checkpoints the newest. Errors: io.
Result<std::string> model_directory(const Disk& disk, const std::string& path);

// That a checkpoint of ours is as it was written; of any other directory nothing is known. Errors:
// corrupt, io.
Result<void> check_as_written(Disk& disk, const std::string& directory);

// Where the model is that an adapter belongs to. Errors: not_found, with what to do; io.
Result<std::string> base_of_adapter(const Disk& disk, const std::string& directory,
                                    const AdapterDescription& description);

// The base with the adapter merged into it. Errors: as StoredAdapter and open_model.
Result<std::unique_ptr<Model>> open_adapted_model(Disk& disk, const std::string& adapter_directory,
                                                  const std::string& base, const BatchShape& shape,
                                                  ThreadPool& pool);

// A model with the parameters of a Hugging Face directory, or of the newest checkpoint in a folder
// of checkpoints; of an adapter, those of its base with the adapter merged into them. `tuning`: of
// one that is to be trained further; adapters of its own are zero yet. Errors: as load_parameters,
// StoredAdapter and base_of_adapter; where the newest is corrupt, it names the one before.
Result<std::unique_ptr<Model>> open_model(Disk& disk, const std::string& path,
                                          const BatchShape& shape, ThreadPool& pool,
                                          const FineTuning& tuning = {});

}  // namespace isthmus::runtime

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
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/disk.h"
#include "base/event_log.h"
#include "base/result.h"
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
// replaced, unless it is the same. `values_read` is called when the model's values are in files:
// from then on the model may change; what is left is to bring them to the disk and to name them.
// Errors: io, disk_full, permission.
Result<std::string> write_checkpoint(Disk& disk, const std::string& folder, Model& model,
                                     const Progress& progress, int keep,
                                     const TrainedOn& trained_on = {},
                                     const std::function<void()>& values_read = {});

// Of the checkpoint of this step, loaded before into `model`; empty when it was not made at a stop,
// forgotten since, or, with a warning event, damaged: the checkpoint is whole without it. Errors:
// io.
Result<TrainedOn> read_trained_on(Disk& disk, const std::string& folder, std::int64_t inner_step,
                                  const Model& model, EventLog& log);
// Before anything is made of it that outlives this process. Errors: io, permission.
Result<void> forget_trained_on(Disk& disk, const std::string& folder, std::int64_t inner_step);

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

}  // namespace isthmus::runtime

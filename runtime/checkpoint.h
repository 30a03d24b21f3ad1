// Checkpoints: Hugging Face directories with the state of the inner optimizer and of the data
// beside them.
//
//   checkpoints/step_00000120/
//     config.json            what the model is                    ┐ transformers loads
//     model.safetensors      f32 parameters, canonical names      ┘ these as they are
//     optimizer.safetensors  first_moment.NAME, second_moment.NAME
//     trainer.json           where training stands; size and BLAKE2b of the files above, and its
//                            own
//
// Written in a hidden folder, each file synced, then renamed: a name that starts with step_ is
// whole, unless a disk or somebody damaged it later, which loading notices before it changes the
// model. Nothing else is touched: one process writes a folder of checkpoints at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/disk.h"
#include "base/event_log.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "runtime/model.h"

namespace isthmus::runtime {

// Where the training of a site stands, besides model and optimizer.
struct Progress {
  std::int64_t inner_step = 0;      // steps done
  std::uint64_t data_position = 0;  // samples drawn by all ranks together
  std::uint64_t tokens = 0;         // trained, by all ranks together
  std::uint64_t seed = 0;           // of the run's data: TrainOptions::seed
  std::string data_digest = {};     // TextDataset::digest(), hex

  // In a federation: the state the parameters are based on, and what was trained upon it.
  std::uint64_t outer_step = 0;
  std::string record = {};         // hash of its record, hex; "" when alone
  std::int64_t steps_since = 0;    // inner steps since the last contribution
  std::uint64_t tokens_since = 0;  // and the tokens in them
  // What was handed over for the next state: still this site's when the gateway never had it.
  std::int64_t handed_steps = 0;
  std::uint64_t handed_tokens = 0;

  bool operator==(const Progress&) const = default;
};

// Writes checkpoint `progress.inner_step` and removes all but the newest `keep` (at least 1).
// Returns its folder; one of this step that is there already is replaced, unless it is the same.
// Errors: io, disk_full, permission.
Result<std::string> write_checkpoint(Disk& disk, const std::string& folder, Model& model,
                                     const Progress& progress, int keep);

// The steps there are checkpoints of, ascending; empty when the folder is not there.
Result<std::vector<std::int64_t>> list_checkpoints(const Disk& disk, const std::string& folder);

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

// Whether load_parameters would find every tensor of this configuration, with its shape; no values
// are read. Errors: as load_parameters.
Result<void> check_parameters(Disk& disk, const std::string& checkpoint, const ModelConfig& config);

// The configuration of a Hugging Face directory.
Result<ModelConfig> read_model_config(Disk& disk, const std::string& checkpoint);

// A model with the parameters of a Hugging Face directory, or of the newest checkpoint in a folder
// of checkpoints: for evaluation and generation. Errors: as load_parameters; where the newest is
// corrupt, it names the one before.
Result<std::unique_ptr<Model>> open_model(Disk& disk, const std::string& path,
                                          const BatchShape& shape, ThreadPool& pool);

}  // namespace isthmus::runtime

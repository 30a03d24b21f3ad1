// Models in directories: those of Hugging Face and PEFT, and our checkpoints, which are such
// directories themselves. Where a path may be a folder of checkpoints, the newest is taken.
#pragma once

#include <memory>
#include <string>

#include "base/disk.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "runtime/adapter.h"
#include "runtime/model.h"

namespace isthmus::runtime {

// A Hugging Face directory itself; of a folder of checkpoints the newest. Errors: io.
Result<std::string> model_directory(const Disk& disk, const std::string& path);

// The configuration of a Hugging Face directory.
Result<ModelConfig> read_model_config(Disk& disk, const std::string& directory);
// Errors: mismatch, which names the number that differs.
Result<void> check_same(const ModelConfig& a, const ModelConfig& b, const std::string& directory);

// Whether load_parameters would find every tensor of this configuration, with its shape, and no
// other; values are read of a head alone that is stored beside an embedding that it should equal.
// Errors: as load_parameters.
Result<void> check_parameters(Disk& disk, const std::string& directory, const ModelConfig& config);

// The parameters of any Hugging Face directory; the optimizer starts afresh. Errors: corrupt,
// mismatch, unsupported, non_finite, not_found, io.
Result<void> load_parameters(Disk& disk, const std::string& directory, Model& model);
// The same of one that is known to be whole, and to be of this configuration.
Result<void> read_parameters(Disk& disk, const std::string& directory, Model& model);

// The adapters of a model that has them, from a directory of PEFT's or a checkpoint. Errors: those
// of StoredAdapter; mismatch (other adapters).
Result<void> load_adapter(Disk& disk, const std::string& directory, Model& model);
// Whether it could be, from there or from a folder of checkpoints.
Result<void> check_adapter(Disk& disk, const std::string& path, const ModelConfig& config,
                           const FineTuning& tuning);

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

// A low-rank adapter as PEFT writes it: what was trained beside a base model, which it names:
//
//   adapter_config.json         rank, alpha, the modules, where the base model is
//   adapter_model.safetensors   base_model.model.MODULE.lora_A.weight {rank, in}, …lora_B… {out,
//   rank}
//
// In and out: PEFT loads what we write, and what it wrote can be trained on, merged and exported.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/disk.h"
#include "base/result.h"
#include "runtime/canonical_tensor.h"
#include "runtime/fine_tuning.h"
#include "runtime/model.h"
#include "runtime/safetensors.h"

namespace isthmus::runtime {

struct AdapterDescription {
  LowRankOptions lora;
  std::string base;  // a Hugging Face directory
};

// An adapter_config.json. Errors: corrupt (no JSON, a field missing or of the wrong kind),
// unsupported (another kind of adapter, or a field that would change what it computes; named).
Result<AdapterDescription> from_adapter_json(std::string_view text);
std::string to_adapter_json(const AdapterDescription& description,
                            std::span<const std::string> modules, Objective objective);

Result<bool> holds_adapter(const Disk& disk, const std::string& directory);

class StoredAdapter {
 public:
  // Description and headers are read and checked; no values are. Errors: not_found, io; corrupt,
  // unsupported.
  static Result<StoredAdapter> open(Disk& disk, const std::string& directory);

  const AdapterDescription& description() const { return description_; }
  // That it is one for this model, and whole. Errors: mismatch, which names the tensors that are
  // missing, of another shape or too many; invalid_argument (a module that the model has not).
  Result<void> check(const ModelConfig& config) const;
  // One of its own tensors, MODULE.lora_A.weight or MODULE.lora_B.weight. Errors: io, non_finite.
  Result<void> read(const CanonicalTensor& tensor, std::span<float> out) const;
  // W ← W + (alpha / rank) · B A of a weight that has an adapter; another one stays. Errors: io,
  // non_finite.
  Result<void> merge_into(const CanonicalTensor& weight, std::span<float> values) const;

 private:
  StoredAdapter(std::string directory, AdapterDescription description, SafetensorsReader reader)
      : directory_(std::move(directory)),
        description_(std::move(description)),
        reader_(std::move(reader)) {}
  Result<std::vector<float>> values_of(const std::string& name) const;

  std::string directory_;
  AdapterDescription description_;
  SafetensorsReader reader_;
};

// Both files, of a model with adapters. That of its tensors, whose values are not read any more, is
// yet to be finished; names are not synced (Disk::sync_folder).
Result<SafetensorsWriter> start_adapter(Disk& disk, const std::string& directory, Model& model);

}  // namespace isthmus::runtime

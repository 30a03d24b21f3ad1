// StoredModel: the tensors of a Hugging Face directory, in one file, model.safetensors, or in
// several, with an index that says which holds what:
//
//   model.safetensors.index.json   {"metadata": …, "weight_map": {TENSOR: FILE, …}}
//   model-00001-of-00002.safetensors, …
//
// Directories come from anywhere: an index names files of its own directory, and every tensor lies
// in the file that the index names and in no other. Errors: not_found, permission, io; corrupt,
// unsupported, too_large (a file or the index).
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/disk.h"
#include "base/result.h"
#include "runtime/canonical_tensor.h"
#include "runtime/safetensors.h"

namespace isthmus::runtime {

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kModelIndexFile = "model.safetensors.index.json";

// Which file holds a tensor: the weight_map of an index. Errors: corrupt (cut short, no such map,
// no plain name of a file).
Result<std::map<std::string, std::string>> parse_model_index(std::string_view text);

class StoredModel {
 public:
  // The headers of all files are read and checked; no values are.
  static Result<StoredModel> open(Disk& disk, const std::string& directory);

  // Whether these tensors are all there, each with its shape, and no other besides. What older
  // programs wrote and what says nothing new is no other: `rotary_emb.inv_freq`; of a model whose
  // head is its embedding a `lm_head.weight` that equals it; of a BERT the heads of other
  // objectives. `LayerNorm.gamma` and `beta` are weight and bias. Errors: mismatch, which names the
  // tensors that are missing, of another shape or too many.
  Result<void> check(std::span<const CanonicalTensor> tensors) const;

  // The values of a tensor that was checked, as f32. Errors also: non_finite.
  Result<void> read(const CanonicalTensor& tensor, std::span<float> out) const;

 private:
  struct Place {
    std::size_t file = 0;
    const StoredTensor* tensor = nullptr;
  };

  explicit StoredModel(std::string directory) : directory_(std::move(directory)) {}
  Result<void> add_file(Disk& disk, const std::string& name);
  Result<void> follow_index(Disk& disk, const std::string& index);
  Result<bool> repeats(const Place& tensor, std::string_view other) const;

  std::string directory_;
  std::vector<SafetensorsReader> files_;
  std::map<std::string, Place, std::less<>> tensors_;
};

}  // namespace isthmus::runtime

// Safetensors files: named tensors behind a JSON header, the format of Hugging Face checkpoints.
//
//   u64 header bytes | header: {"__metadata__": {text: text},              | data
//                    |  NAME: {"dtype": "F32", "shape": [2, 3],            |
//                    |         "data_offsets": [begin, end]}, …}           |
//
// Offsets count from the start of the data; tensors lie there without gap or overlap. Files come
// from anywhere: the whole header is checked before a byte of data is read, and nothing is
// allocated on a file's word beyond the header's limit.
//
// Errors: not_found, permission, io; corrupt (not a safetensors file, or cut short), unsupported (a
// dtype we do not convert), too_large (the header).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/disk.h"
#include "base/result.h"
#include "base/tensor_view.h"

namespace isthmus::runtime {

inline constexpr std::uint64_t kSafetensorsHeaderBytesMax = 100'000'000;  // the format's own limit

struct StoredTensor {
  std::string name;
  std::string dtype;  // as the format calls it: "F32", "BF16", …
  std::vector<std::uint64_t> shape;
  std::uint64_t offset = 0;  // of the first byte in the file
  std::uint64_t bytes = 0;
  std::uint64_t elements = 0;
};

class SafetensorsReader {
 public:
  static Result<SafetensorsReader> open(Disk& disk, const std::string& path);

  // In the order of their data.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor* find(std::string_view name) const;  // nullptr: none
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // The values as f32, from F32, BF16 or F16; `out` holds all elements of the tensor.
  Result<void> read(const StoredTensor& tensor, std::span<float> out) const;

 private:
  SafetensorsReader() = default;

  std::string path_;
  std::unique_ptr<File> file_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

struct TensorToStore {
  std::string name;
  Shape shape;
  std::span<const float> values;
};

// A new file with these tensors as F32 in this order, synced; its name is not (Disk::sync_folder).
// Equal input gives equal bytes.
Result<void> write_safetensors(Disk& disk, const std::string& path,
                               std::span<const TensorToStore> tensors,
                               const std::map<std::string, std::string>& metadata);

}  // namespace isthmus::runtime

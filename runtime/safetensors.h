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

// Whether a tensor has the shape that a model needs. Errors: mismatch, with both.
Result<void> check_shape(const StoredTensor& tensor, const Shape& needed);

class SafetensorsReader {
 public:
  static Result<SafetensorsReader> open(Disk& disk, const std::string& path);

  // In the order of their data.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor* find(std::string_view name) const;  // nullptr: none
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // The values as f32, from F32, BF16 or F16: of `out`'s size from element `first` on, which the
  // tensor has.
  Result<void> read(const StoredTensor& tensor, std::uint64_t first, std::span<float> out) const;
  // All of them.
  Result<void> read(const StoredTensor& tensor, std::span<float> out) const;
  // All of them, each a number. Errors also: non_finite.
  Result<void> read_finite(const StoredTensor& tensor, std::span<float> out) const;

 private:
  SafetensorsReader() = default;

  std::string path_;
  std::unique_ptr<File> file_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// What parameters are stored as.
enum class StoredDType : std::uint8_t { f32, bf16, f16 };

struct StoredDTypeName {
  StoredDType dtype;
  std::string_view name;         // "bf16"
  std::string_view torch_name;   // in a config.json: "bfloat16"
  std::string_view tensor_name;  // in a safetensors file: "BF16"
  std::uint64_t bytes;           // of an element
};
std::span<const StoredDTypeName> stored_dtypes();
const StoredDTypeName& name_of(StoredDType dtype);

// A new file of tensors that are given one after the other, so that only one has to be in memory.
class SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    Shape shape;
  };
  // Equal input gives equal bytes.
  static Result<SafetensorsWriter> create(Disk& disk, const std::string& path,
                                          std::span<const Entry> tensors, StoredDType dtype,
                                          const std::map<std::string, std::string>& metadata);

  // Of the next of `tensors`: rounded to nearest even. Errors also: too_large (F16 cannot hold
  // one).
  Result<void> add(std::span<const float> values);
  // After the last: synced; its name is not (Disk::sync_folder).
  Result<void> finish();

 private:
  SafetensorsWriter() = default;

  std::unique_ptr<File> file_;
  std::vector<Entry> tensors_;
  StoredDType dtype_ = StoredDType::f32;
  std::size_t next_ = 0;
  std::uint64_t at_ = 0;
};

struct TensorToStore {
  std::string name;
  Shape shape;
  std::span<const float> values;
};

// A new file with these tensors as F32 in this order, whose values are not read any more; yet to be
// finished. Equal input gives equal bytes.
Result<SafetensorsWriter> start_safetensors(Disk& disk, const std::string& path,
                                            std::span<const TensorToStore> tensors,
                                            const std::map<std::string, std::string>& metadata);
// The same, finished.
Result<void> write_safetensors(Disk& disk, const std::string& path,
                               std::span<const TensorToStore> tensors,
                               const std::map<std::string, std::string>& metadata);

}  // namespace isthmus::runtime

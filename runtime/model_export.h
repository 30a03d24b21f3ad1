// A model as other programs take it: a Hugging Face directory of its parameters alone, in the dtype
// and the size of files that one wishes.
#pragma once

#include <cstdint>
#include <string>

#include "base/disk.h"
#include "base/result.h"
#include "runtime/safetensors.h"

namespace isthmus::runtime {

struct ExportOptions {
  StoredDType dtype = StoredDType::f32;
  // Of a file, at most; a tensor that is larger has one of its own. With more than one there is an
  // index.
  std::uint64_t file_bytes_max = std::uint64_t{5} << 30;
};

// Of a checkpoint, an adapter (merged into its base) or any Hugging Face directory of a family that
// we know, into a new directory,
// which appears whole or not at all. One tensor is in memory at a time. Parameters that the source
// has in `dtype`, or in one that it holds exactly, come out bit for bit. Errors: as
// load_parameters; exists; too_large (a value that F16 cannot hold); disk_full, permission, io.
Result<void> export_model(Disk& disk, const std::string& source, const std::string& destination,
                          const ExportOptions& options);

}  // namespace isthmus::runtime

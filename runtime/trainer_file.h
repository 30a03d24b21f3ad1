// TrainerFile: a checkpoint's trainer.json: where training stands, and what the other files of the
// checkpoint are, so that damage shows.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/disk.h"
#include "base/result.h"
#include "runtime/progress.h"
#include "runtime/stored_model.h"

namespace isthmus::runtime {

struct FileIdentity {
  std::uint64_t bytes = 0;
  std::string digest;  // BLAKE2b, hex
  bool operator==(const FileIdentity&) const = default;
};

inline constexpr const char* kTrainerFile = "trainer.json";
inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kTrainedOnFile = "trained_on.safetensors";
// Where only adapters train, instead of the model (runtime/adapter.h).
inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
inline constexpr const char* kAdapterFile = "adapter_model.safetensors";

struct TrainerFile {
  Progress progress;
  std::int64_t updates = 0;
  std::map<std::string, FileIdentity> files;  // by name: all but the next, and this one
  std::optional<FileIdentity> trained_on;     // was written; may be forgotten since
};

// The text, with its own checksum.
std::string encode(const TrainerFile& content);

// Errors: corrupt (cut short, damaged, edited), unsupported (another version's).
Result<TrainerFile> decode_trainer_file(std::string_view text);

// Of a checkpoint. Errors: the same, where there is none corrupt too; io.
Result<TrainerFile> read_trainer_file(Disk& disk, const std::string& checkpoint);

// Of a file as it is. Errors: not_found, io.
Result<FileIdentity> identity_of(Disk& disk, const std::string& path);
// Whether it is what was written. Errors: corrupt (names the file), io.
Result<void> check_file(Disk& disk, const std::string& path, const FileIdentity& expected);
// Whether all are that `trainer` names, but for what may be forgotten.
Result<void> check_files(Disk& disk, const std::string& checkpoint, const TrainerFile& trainer);
// That a checkpoint of ours is as it was written; of any other directory nothing is known. Errors:
// corrupt, io.
Result<void> check_as_written(Disk& disk, const std::string& directory);

}  // namespace isthmus::runtime

// PrepareJournal: how far `isthmus data prepare` has come, beside what it writes, so that one that
// was killed goes on. Each entry says how long the files are, what was added to them since the
// entry before, and where reading goes on; it is written when these are on disk.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/disk.h"
#include "base/result.h"
#include "runtime/document_reader.h"
#include "security/hash.h"

namespace isthmus::runtime {

inline constexpr std::size_t kPreparedFiles = 6;

// Of the train or of the held-out part.
struct PartCounts {
  std::uint64_t documents = 0, tokens = 0, targets = 0, text_bytes = 0;
};

struct PrepareEntry {
  ReadPosition source;
  std::array<PartCounts, 2> parts;
  std::array<std::uint64_t, kPreparedFiles> file_bytes = {};  // in the caller's order
  security::Digest added;  // blake2b of what was added, file by file
  bool whole = false;      // all is written: what is left is to give the files their names
};

class PrepareJournal {
 public:
  // An empty one. `task`: what is prepared, and how; whoever goes on must do the same.
  static Result<PrepareJournal> create(Disk& disk, const std::string& path,
                                       const security::Digest& task);

  // Of an earlier process; nothing where there is none, or it is of another task.
  static Result<std::optional<PrepareJournal>> open(Disk& disk, const std::string& path,
                                                    const security::Digest& task);

  // The last entry, where it says that all is written.
  Result<std::optional<PrepareEntry>> whole() const;

  // The last entry up to which `files` hold what the journal says; later ones, and what is in the
  // files beyond it, are cut off. Nothing: none is whole.
  Result<std::optional<PrepareEntry>> agree(std::span<File* const, kPreparedFiles> files);

  Result<void> add(const PrepareEntry& entry);

 private:
  explicit PrepareJournal(std::unique_ptr<File> file) : file_(std::move(file)) {}
  std::unique_ptr<File> file_;
  std::uint64_t entries_ = 0;
};

}  // namespace isthmus::runtime

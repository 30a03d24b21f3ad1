// Disk: files as the outer step sees them, with the operations that a crash can part made explicit.
// The system's file system, or a simulated one that loses and tears what was not synced
// (inter/sim).
//
// Calls block. A write of 64 KiB or more goes past the system's page cache, which costs more CPU
// than the disk, if memory, offset and length are multiples of kDiskAlignment
// (base/aligned_buffer.h) and the file system can do it. Contents are durable after File::sync; a
// created, renamed or removed name is durable after sync_folder. Until then it is there for all who
// read it, later processes too, and may be gone when the machine loses power; what a failed sync
// should have kept may be gone then even if a later sync succeeds, unless it is written anew.
// Errors: io, disk_full, permission, not_found, already_exists, busy (a lock held by another
// process).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/byte_stream.h"
#include "base/result.h"

namespace isthmus {

// Whether a file that was to be read is not there, or does not check; after any other error it may
// be there, and the disk cannot read it now.
inline bool is_lost(const Error& error) {
  return error.code == ErrorCode::not_found || error.code == ErrorCode::corrupt;
}

class File {
 public:
  virtual ~File() = default;
  // Fails with corrupt when the file ends before `out` is full.
  virtual Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const = 0;
  // Grows the file when it ends before offset + bytes. After a failure a part may be written, as
  // much as a full disk had room for.
  virtual Result<void> write_at(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual Result<void> truncate(std::uint64_t bytes) = 0;
  virtual Result<std::uint64_t> size() const = 0;
  virtual Result<void> sync() = 0;
};

// Holds a lock for as long as it lives; the system frees it when the process dies.
class DiskLock {
 public:
  virtual ~DiskLock() = default;
};

class Disk {
 public:
  enum class Open {
    read,
    update,
    create,     // a new, empty file, also where one was (a new inode), as replaced_by() says
    overwrite,  // as update, or as create where nothing is. File systems take long to give up the
                // blocks of a large file, and to find others
  };

  virtual ~Disk() = default;
  virtual Result<std::unique_ptr<File>> open(const std::string& path, Open how) = 0;
  // What a new file at this path takes the place of: where a link is, the file that it names.
  // Errors also: invalid_argument (a device or a pipe, which stays).
  virtual Result<std::string> replaced_by(const std::string& path) const { return path; }
  virtual Result<void> rename(const std::string& from, const std::string& to) = 0;
  virtual Result<void> remove(const std::string& path) = 0;  // of what is not there: fine
  virtual Result<bool> exists(const std::string& path) const = 0;
  virtual Result<std::vector<std::string>> list(
      const std::string& folder) const = 0;  // names, sorted
  virtual Result<void> make_folders(const std::string& path) = 0;
  virtual Result<void> sync_folder(const std::string& path) = 0;
  virtual Result<std::unique_ptr<DiskLock>> lock(const std::string& path) = 0;
};

std::unique_ptr<Disk> make_system_disk();

// The whole file; too_large when it has more than `bytes_max`.
Result<Bytes> read_file(const Disk& disk, const std::string& path, std::uint64_t bytes_max);

// Replaces a file so that a crash leaves the old or the new one, whole: temporary name, sync,
// rename, sync of the folder.
Result<void> replace_file(Disk& disk, const std::string& path, std::span<const std::byte> bytes);

// What stands before the last slash: "" for a bare name, "/" for a name in the root.
std::string folder_of(const std::string& path);

}  // namespace isthmus

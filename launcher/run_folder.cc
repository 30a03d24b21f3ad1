#include "launcher/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

namespace isthmus::launcher {

Result<std::unique_ptr<DiskLock>> lock_run(Disk& disk, const RunFolder& folder) {
  ISTHMUS_CHECK(disk.make_folders(folder.path()));
  auto lock = disk.lock(folder.lock());
  if (!lock && lock.error().code == ErrorCode::busy)
    return Error{ErrorCode::busy,
                 fmt::format("another process already runs this site in {}; stop it first, or give "
                             "this site a run_dir of its own",
                             folder.path()),
                 std::move(lock).error()};
  return lock;
}

Result<std::unique_ptr<DiskLock>> lock_ranks(Disk& disk, const RunFolder& folder) {
  ISTHMUS_CHECK(disk.make_folders(folder.path()));
  auto lock = disk.lock(folder.rank_lock());
  if (!lock && lock.error().code == ErrorCode::busy)
    return Error{ErrorCode::busy,
                 fmt::format("another process already trains this site in {}: leave that to it, or "
                             "stop it first",
                             folder.path()),
                 std::move(lock).error()};
  return lock;
}

// Shared, and for an instant: who looks at the same time does not disturb.
bool somebody_runs(const RunFolder& folder) {
  const int descriptor = ::open(folder.lock().c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool held = ::flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(descriptor);
  return held;
}

}  // namespace isthmus::launcher

#include "launcher/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace isthmus::launcher {
namespace {

Result<std::unique_ptr<DiskLock>> lock_for(Disk& disk, const RunFolder& folder,
                                           const std::string& path,
                                           std::string_view somebody_else) {
  ISTHMUS_CHECK(disk.make_folders(folder.path()));
  auto lock = disk.lock(path);
  if (!lock && lock.error().code == ErrorCode::busy)
    return Error{ErrorCode::busy, fmt::format(fmt::runtime(somebody_else), folder.path()),
                 std::move(lock).error()};
  return lock;
}

}  // namespace

Result<std::unique_ptr<DiskLock>> lock_run(Disk& disk, const RunFolder& folder) {
  return lock_for(disk, folder, folder.lock(),
                  "another process already runs this site in {}; stop it first, or give this site "
                  "a run_dir of its own");
}

Result<std::unique_ptr<DiskLock>> lock_ranks(Disk& disk, const RunFolder& folder) {
  return lock_for(disk, folder, folder.rank_lock(),
                  "another process already trains this site in {}: leave that to it, or stop it "
                  "first");
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

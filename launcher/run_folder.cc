#include "launcher/run_folder.h"

#include <fmt/format.h>

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

}  // namespace isthmus::launcher

// The folder of a run's checkpoints: how they lie beside each other, come and go, so that whatever
// has the name of one is whole (runtime/checkpoint.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/disk.h"
#include "base/result.h"

namespace isthmus::runtime {

std::string checkpoint_name(std::int64_t step);  // "step_00000120"

// The steps there are checkpoints of, ascending; empty when the folder is not there.
Result<std::vector<std::int64_t>> list_checkpoints(const Disk& disk, const std::string& folder);

// Where the files of a checkpoint are written before it has its name. Errors of all below: io,
// permission.
std::string writing_folder(const std::string& folder, std::int64_t step);
// Gives what was written there its name. One of the same step may be there, from another outer step
// or from before a restart: the two change places, so that a crash leaves either.
Result<void> publish_checkpoint(Disk& disk, const std::string& folder, std::int64_t step);
// A crash in that may have left a checkpoint under the name it had while another took its place.
Result<void> restore_replaced(Disk& disk, const std::string& folder);
// What a crash or an error left half written or half removed, of whatever step: the disk may have
// room for one more checkpoint, and not for that too.
Result<void> remove_unnamed(Disk& disk, const std::string& folder);
// All but the newest `keep`, and the one of step `best`.
Result<void> remove_old_checkpoints(Disk& disk, const std::string& folder, int keep,
                                    std::int64_t best);
// With all that is in it; no error where there is none.
Result<void> remove_folder(const std::string& path);

}  // namespace isthmus::runtime

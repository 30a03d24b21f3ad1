// What a site remembers of rosters across restarts, so that an old one, however well signed, cannot
// bring back a key that was withdrawn. One small file in run_dir, replaced atomically.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/disk.h"
#include "base/result.h"
#include "security/hash.h"

namespace isthmus::security {

struct SeenRoster {
  std::uint64_t epoch = 0;
  Digest digest;  // of the roster's exact bytes

  bool operator==(const SeenRoster&) const = default;
};

// The newest roster ever accepted here; none in a fresh run_dir. Fails with corrupt when the file
// is damaged: then nobody can tell what is old, and a person must look.
Result<std::optional<SeenRoster>> newest_seen_roster(const Disk& disk, const std::string& run_dir);

// Whether a site that has used `newest` may use `roster`. Errors: expired (an older epoch),
// mismatch (the same epoch, other bytes: the operator signed two rosters under one number).
Result<void> check_follows(const SeenRoster& newest, const SeenRoster& roster);

// To be called with every verified roster before it is used; durable when it returns. Errors:
// those of check_follows and of newest_seen_roster.
Result<void> admit_roster(Disk& disk, const std::string& run_dir, const SeenRoster& roster);

}  // namespace isthmus::security

// SeedRuns: simulations of many seeds at once, each in a child process, so that a seed on which the
// program itself ends is one more failing seed. One seed's run is the same wherever it runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "launcher/seed_record.h"

namespace isthmus::launcher {

// What is wrong with a seed on which its process ended, or took longer than this.
inline constexpr Nanoseconds kSeedTimeMax = 600 * kSecond;

struct SeedRuns {
  std::function<std::optional<std::uint64_t>()> next;  // none: no more
  std::function<SeedResult(std::uint64_t)> run;        // in a child
  std::function<Result<void>(const SeedResult&)> done;
  std::function<void()> tick;  // a few times a second
  unsigned processes = 1;
};
// Until all are done. `stop`: seeds under way are given up. Errors: cancelled, when stopped; io,
// when no process can be started; unavailable, when one was killed from outside; those of `done`.
Result<void> run_seeds(const SeedRuns& runs, const std::atomic<bool>& stop);

// One run in a child: what `run` says, or why its process ended. Errors: as above.
Result<std::string> run_apart(const std::function<std::string()>& run,
                              const std::atomic<bool>& stop);

}  // namespace isthmus::launcher

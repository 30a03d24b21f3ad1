// SeedRecord: which seeds of a simulation were run, and how each ended, in a file to which each is
// added as it ends: whoever goes on after Ctrl-C or kill -9 repeats none. A last line that a kill
// tore is forgotten. The results of another program or scenario are not mixed with these.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/disk.h"
#include "base/result.h"

namespace isthmus::launcher {

struct SeedResult {
  std::uint64_t seed = 0;
  std::uint64_t events = 0, faults = 0;
  double simulated_seconds = 0;
  std::string violation = {};  // the first one; "": all invariants held
  bool operator==(const SeedResult&) const = default;

  // One line, with its end.
  std::string line() const;
};
std::optional<SeedResult> parse_seed_line(std::string_view line);  // without its end

class SeedRecord {
 public:
  // `identity`, one line: what the results are of. Errors, with what to do: mismatch, when the file
  // is of something else; busy, when another process writes it; corrupt; invalid_argument, when its
  // folder is not there; those of the disk.
  static Result<SeedRecord> open(Disk& disk, const std::string& path, const std::string& identity);

  const std::map<std::uint64_t, SeedResult>& results() const { return results_; }
  Result<void> add(const SeedResult& result);

 private:
  std::unique_ptr<DiskLock> lock_;
  std::unique_ptr<File> file_;
  std::uint64_t end_ = 0;
  std::map<std::uint64_t, SeedResult> results_;
};

}  // namespace isthmus::launcher

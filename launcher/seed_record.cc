#include "launcher/seed_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "base/byte_stream.h"
#include "base/counted.h"

namespace isthmus::launcher {
namespace {

constexpr std::uint64_t kBytesMax = std::uint64_t{4} << 30;
constexpr std::string_view kFirstWords = "isthmus seeds 1 ";

}  // namespace

std::string SeedResult::line() const {
  auto said = violation;
  std::ranges::replace(said, '\n', ' ');
  return fmt::format("{} {} {} {:.3f} {}\n", seed, events, faults, simulated_seconds,
                     said.empty() ? "held" : "failed " + said);
}

std::optional<SeedResult> parse_seed_line(std::string_view line) {
  std::istringstream in{std::string(line)};
  SeedResult result;
  std::string verdict;
  if (!(in >> result.seed >> result.events >> result.faults >> result.simulated_seconds >> verdict))
    return std::nullopt;
  if (verdict == "held") return result;
  std::getline(in >> std::ws, result.violation);
  if (verdict != "failed" || result.violation.empty()) return std::nullopt;
  return result;
}

namespace {

// Refuses what begins otherwise than a record whose first line is `first`.
Result<void> check_begin(const std::string& path, std::string_view text, const std::string& first) {
  if (text.starts_with(first) || first.starts_with(text)) return {};
  if (!text.starts_with(kFirstWords))
    return Error{
        ErrorCode::corrupt,
        fmt::format("{} is no record of seeds, and stays as it is: name another file with --resume",
                    path)};
  return Error{ErrorCode::mismatch,
               fmt::format("{} is of another build of isthmus, or of another scenario: name "
                           "another file with --resume, or remove it if nobody needs it any more",
                           path)};
}

Result<std::string> first_bytes(Disk& disk, const std::string& path, std::uint64_t bytes_max) {
  ISTHMUS_TRY(const auto file, disk.open(path, Disk::Open::read));
  ISTHMUS_TRY(const auto size, file->size());
  Bytes bytes(std::min(size, bytes_max));
  ISTHMUS_CHECK(file->read_at(0, bytes));
  return std::string(text_of(bytes));
}

}  // namespace

Result<SeedRecord> SeedRecord::open(Disk& disk, const std::string& path,
                                    const std::string& identity) {
  SeedRecord record;
  const auto first = std::string(kFirstWords) + identity + "\n";
  // Before there is a lock: nothing is left beside what is refused.
  if (const auto folder = folder_of(path); !folder.empty()) {
    ISTHMUS_TRY(const bool there, disk.exists(folder));
    if (!there)
      return Error{ErrorCode::invalid_argument,
                   fmt::format("there is no folder {} for {}: make it, or name a file elsewhere "
                               "with --resume",
                               folder, path)};
  }
  ISTHMUS_CHECK(disk.replaced_by(path));
  auto exists = disk.exists(path);
  if (!exists)
    return Error{
        exists.error().code,
        fmt::format("cannot keep a record of seeds in {}: name another file with --resume", path),
        std::move(exists).error()};
  if (*exists) {
    ISTHMUS_TRY(const auto begin, first_bytes(disk, path, first.size()));
    ISTHMUS_CHECK(check_begin(path, begin, first));
  }
  auto lock = disk.lock(path + ".lock");
  if (!lock && lock.error().code == ErrorCode::busy)
    return Error{
        ErrorCode::busy,
        fmt::format("another isthmus simulate adds to {}: wait until it has ended, or name "
                    "another file with --resume",
                    path),
        std::move(lock).error()};
  if (!lock)
    return Error{lock.error().code == ErrorCode::disk_full ? ErrorCode::disk_full
                                                           : ErrorCode::invalid_argument,
                 fmt::format("cannot write beside {}: name another file with --resume", path),
                 std::move(lock).error()};
  record.lock_ = std::move(*lock);
  ISTHMUS_TRY(const bool there, disk.exists(path));
  std::string text;
  if (there) {
    ISTHMUS_TRY(const auto bytes, read_file(disk, path, kBytesMax));
    text = std::string(text_of(bytes));
  }
  ISTHMUS_CHECK(check_begin(path, text, first));
  // One that was killed before its first line was whole has nothing else.
  if (!text.starts_with(first)) text.clear();
  ISTHMUS_TRY(record.file_,
              disk.open(path, text.empty() ? Disk::Open::create : Disk::Open::update));
  if (text.empty()) {
    ISTHMUS_CHECK(record.file_->write_at(0, bytes_of(first)));
    record.end_ = first.size();
    return record;
  }
  record.end_ = first.size();
  for (auto end = text.find('\n', record.end_); end != text.npos;
       end = text.find('\n', record.end_)) {
    const auto result =
        parse_seed_line(std::string_view(text).substr(record.end_, end - record.end_));
    if (!result)
      return Error{ErrorCode::corrupt,
                   fmt::format("{0} is damaged {1} bytes from its start: truncate -s {1} {0} keeps "
                               "the {2} before that and the same command then runs the others "
                               "again; or move it away, or name another file with --resume",
                               path, record.end_, counted(record.results_.size(), "seed"))};
    record.results_[result->seed] = *result;
    record.end_ = end + 1;
  }
  ISTHMUS_CHECK(record.file_->truncate(record.end_));
  return record;
}

Result<void> SeedRecord::add(const SeedResult& result) {
  const auto line = result.line();
  ISTHMUS_CHECK(file_->write_at(end_, bytes_of(line)));
  end_ += line.size();
  results_[result.seed] = result;
  return {};
}

}  // namespace isthmus::launcher

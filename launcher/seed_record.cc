#include "launcher/seed_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "base/byte_stream.h"

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

Result<SeedRecord> SeedRecord::open(Disk& disk, const std::string& path,
                                    const std::string& identity) {
  SeedRecord record;
  ISTHMUS_TRY(record.lock_, disk.lock(path + ".lock"));
  const auto first = std::string(kFirstWords) + identity + "\n";
  ISTHMUS_TRY(const bool exists, disk.exists(path));
  std::string text;
  if (exists) {
    ISTHMUS_TRY(const auto bytes, read_file(disk, path, kBytesMax));
    text = std::string(text_of(bytes));
  }
  // One that was killed before its first line was whole has nothing else.
  if (text.find('\n') == text.npos && first.starts_with(text)) text.clear();
  if (!text.empty() && !text.starts_with(kFirstWords))
    return Error{ErrorCode::corrupt, fmt::format("{} is no record of seeds", path)};
  if (!text.empty() && !text.starts_with(first))
    return Error{ErrorCode::mismatch,
                 fmt::format("{} is of another build of isthmus, or of another scenario: remove "
                             "it, or name another file with --resume",
                             path)};
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
                   fmt::format("{} is damaged {} bytes from its start", path, record.end_)};
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

#include "runtime/checkpoint_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

namespace isthmus::runtime {
namespace {

constexpr std::string_view kStepPrefix = "step_";
constexpr std::string_view kWritingPrefix = ".writing_";
constexpr std::string_view kRemovingPrefix = ".removing_";
constexpr std::string_view kReplacedSuffix = ".old";

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  name.remove_prefix(kStepPrefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc{} || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

}  // namespace

std::string checkpoint_name(std::int64_t step) { return fmt::format("{}{:08}", kStepPrefix, step); }

Result<std::vector<std::int64_t>> list_checkpoints(const Disk& disk, const std::string& folder) {
  std::vector<std::int64_t> steps;
  ISTHMUS_TRY(const bool exists, disk.exists(folder));
  if (!exists) return steps;
  ISTHMUS_TRY(const auto names, disk.list(folder));
  for (const auto& name : names)
    if (const auto step = step_of(name)) steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::string writing_folder(const std::string& folder, std::int64_t step) {
  return fmt::format("{}/{}{}", folder, kWritingPrefix, checkpoint_name(step));
}

// Disk removes files only: folders are nobody's but ours, and not part of what is simulated.
Result<void> remove_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) return error_of_errno(error.value(), fmt::format("cannot remove {}", path));
  return {};
}

Result<void> publish_checkpoint(Disk& disk, const std::string& folder, std::int64_t step) {
  const auto writing = writing_folder(folder, step);
  const auto checkpoint = folder + "/" + checkpoint_name(step);
  ISTHMUS_TRY(const bool exists, disk.exists(checkpoint));
  if (!exists) return disk.rename(writing, checkpoint);
  if (::renameat2(AT_FDCWD, writing.c_str(), AT_FDCWD, checkpoint.c_str(), RENAME_EXCHANGE) != 0) {
    if (errno != EINVAL && errno != ENOSYS)
      return error_of_errno(errno, fmt::format("cannot replace {}", checkpoint));
    // A file system that cannot exchange: for a moment neither has its name (restore_replaced).
    const std::string old = writing + std::string(kReplacedSuffix);
    ISTHMUS_CHECK(disk.rename(checkpoint, old));
    ISTHMUS_CHECK(disk.rename(writing, checkpoint));
    return remove_folder(old);
  }
  return remove_folder(writing);
}

Result<void> restore_replaced(Disk& disk, const std::string& folder) {
  ISTHMUS_TRY(const bool any, disk.exists(folder));
  if (!any) return {};
  ISTHMUS_TRY(const auto names, disk.list(folder));
  for (std::string_view name : names) {
    if (!name.starts_with(kWritingPrefix) || !name.ends_with(kReplacedSuffix)) continue;
    auto original = name.substr(kWritingPrefix.size());
    original.remove_suffix(kReplacedSuffix.size());
    const auto path = fmt::format("{}/{}", folder, original);
    ISTHMUS_TRY(const bool there, disk.exists(path));
    if (!there) ISTHMUS_CHECK(disk.rename(fmt::format("{}/{}", folder, name), path));
  }
  return {};
}

Result<void> remove_unnamed(Disk& disk, const std::string& folder) {
  ISTHMUS_CHECK(restore_replaced(disk, folder));
  ISTHMUS_TRY(const auto names, disk.list(folder));
  for (const auto& name : names)
    if (name.starts_with(kRemovingPrefix) || name.starts_with(kWritingPrefix))
      ISTHMUS_CHECK(remove_folder(folder + "/" + name));
  return {};
}

// Old checkpoints are renamed before they are emptied, so that no half of one looks like a whole.
Result<void> remove_old_checkpoints(Disk& disk, const std::string& folder, int keep,
                                    std::int64_t best) {
  ISTHMUS_TRY(const auto steps, list_checkpoints(disk, folder));
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < steps.size(); ++i) {
    if (steps[i] == best) continue;
    const auto hidden = fmt::format("{}/{}{}", folder, kRemovingPrefix, checkpoint_name(steps[i]));
    ISTHMUS_CHECK(disk.rename(folder + "/" + checkpoint_name(steps[i]), hidden));
    ISTHMUS_CHECK(remove_folder(hidden));
  }
  return {};
}

}  // namespace isthmus::runtime

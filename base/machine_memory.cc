#include "base/machine_memory.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>

namespace isthmus {
namespace {

// A limit file holds bytes, or a word ("max") where there is no limit.
std::uint64_t limit_in(const std::filesystem::path& file) {
  std::uint64_t bytes = 0;
  std::ifstream in(file);
  return in >> bytes ? bytes : std::numeric_limits<std::uint64_t>::max();
}

}  // namespace

std::uint64_t cgroup_memory_limit(const std::string& membership, const std::string& mount) {
  auto least = std::numeric_limits<std::uint64_t>::max();
  std::ifstream lines(membership);
  // Hierarchy, controllers, path: "0::/slurm/job_7" (version 2), "9:memory:/slurm/job_7".
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find(",memory,") == std::string::npos) continue;
    const std::filesystem::path root = unified ? mount : mount + "/memory";
    const auto* file = unified ? "memory.max" : "memory.limit_in_bytes";
    auto group = std::filesystem::path(line.substr(second + 1)).relative_path();
    for (;; group = group.parent_path()) {  // its limit holds below it
      least = std::min(least, limit_in(root / group / file));
      if (group.empty()) break;
    }
  }
  return least;
}

std::uint64_t machine_memory_bytes() {
  const auto physical = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                        static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return std::min(physical, cgroup_memory_limit());
}

}  // namespace isthmus

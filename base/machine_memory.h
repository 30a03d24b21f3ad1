// How much memory this process may use at most, so that what cannot fit is refused with a sentence
// before it is allocated. The kernel would grant it, and end some process when it is touched.
#pragma once

#include <cstdint>
#include <string>

namespace isthmus {

// Bytes of physical memory, or of the least limit that a control group (a container, a Slurm job)
// sets.
std::uint64_t machine_memory_bytes();

// The least limit of this process's groups and those above them; the largest number where none has
// one. Both versions: https://docs.kernel.org/admin-guide/cgroup-v2.html, cgroup-v1/memory.html.
std::uint64_t cgroup_memory_limit(const std::string& membership = "/proc/self/cgroup",
                                  const std::string& mount = "/sys/fs/cgroup");

}  // namespace isthmus

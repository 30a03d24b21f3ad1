// The processes that a site consists of on this machine, as `launch` has them supervised: a
// gateway, unless the site trains alone, and its ranks.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "launcher/site_file.h"
#include "launcher/supervisor.h"

namespace isthmus::launcher {

// `path`, `overrides`: how the processes find their site file. `number`: which site of this launch.
// `cpus`: how many this machine gives. Several ranks are mpirun's.
std::vector<SupervisedProcess> site_processes(const SiteFile& file, const std::string& path,
                                              std::span<const std::string> overrides, int number,
                                              std::size_t cpus);

}  // namespace isthmus::launcher

// SitePlan: what `isthmus plan` tells of a site: its peak memory by kind, and what recomputation
// would change.
#pragma once

#include <cstddef>
#include <string>

#include "launcher/site_file.h"
#include "launcher/site_memory.h"
#include "runtime/training_memory.h"

namespace isthmus::launcher {

struct SitePlan {
  std::string site;
  std::int64_t parameters = 0;
  std::int64_t trained = 0;  // of these
  std::int64_t ranks = 0;
  bool alone = false;
  runtime::BatchShape shape;
  SiteMemory memory;
  runtime::RecomputationPlan recomputation;
  double machine_bytes = 0;  // 0: unknown

  double all_bytes() const { return static_cast<double>(ranks) * memory.rank() + memory.gateway(); }
};

// Of a file that checks; `sites`: of the roster, 1 for one that trains alone.
SitePlan plan_of(const SiteFile& file, std::size_t sites, double machine_bytes);

std::string text_of(const SitePlan& plan);  // lines
std::string json_of(const SitePlan& plan);  // one line; bytes

}  // namespace isthmus::launcher

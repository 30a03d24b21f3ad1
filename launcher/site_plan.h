// SitePlan: what `isthmus plan` tells of a site: its peak memory by kind, what recomputation would
// change, and what its gateway writes.
#pragma once

#include <cstddef>
#include <string>

#include "launcher/site_file.h"
#include "launcher/site_memory.h"
#include "runtime/training_memory.h"

namespace isthmus::launcher {

// Bytes that a gateway writes to its disk for each outer step.
struct StepWrites {
  double contribution = 0;  // coded, and the feedback: synced before a record may name it
  double others = 0;        // contributions, as they arrive
  double state = 0;         // once the step is done, while the next one goes on
};

struct SitePlan {
  std::string site;
  std::int64_t parameters = 0;
  std::int64_t trained = 0;  // of these
  std::int64_t ranks = 0;
  bool alone = false;
  runtime::BatchShape shape;
  SiteMemory memory;
  StepWrites writes;
  runtime::RecomputationPlan recomputation;
  double machine_bytes = 0;  // 0: unknown

  double all_bytes() const { return static_cast<double>(ranks) * memory.rank() + memory.gateway(); }
};

// Of a file that checks; `sites`: of the roster, 1 for one that trains alone.
SitePlan plan_of(const SiteFile& file, std::size_t sites, double machine_bytes);

std::string text_of(const SitePlan& plan);  // lines
std::string json_of(const SitePlan& plan);  // one line; bytes

}  // namespace isthmus::launcher

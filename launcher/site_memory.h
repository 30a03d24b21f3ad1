// SiteMemory: what a site needs of a machine's memory, as its file says. An estimate: what the
// processes themselves take, some dozens of MB each, is left out.
#pragma once

#include <cstddef>

#include "launcher/site_file.h"
#include "runtime/training_memory.h"

namespace isthmus::launcher {

// Bytes.
struct SiteMemory {
  runtime::TrainingMemory training;  // of each rank
  double exchange = 0;               // the same: what was contributed, and what replaces it
  double gateway_state = 0;
  double gateway_windows = 0;  // chunks that wait to be checked
  double gateway_records = 0;  // at the end of the run: it keeps the certificates of all steps
  double gateway_shared = 0;   // with the first rank

  double rank() const { return training.total() + exchange; }
  double gateway_alone() const { return gateway_state + gateway_windows + gateway_records; }
  double gateway() const { return gateway_alone() + gateway_shared; }
};

// Of a model that checks; `sites`: of the roster, 1 for one that trains alone.
SiteMemory memory_of(const SiteFile& file, std::size_t sites);

// Share of f32 that the codec sends, before zstd.
double codec_share(compress::CodecId codec);

}  // namespace isthmus::launcher

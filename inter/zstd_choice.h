// Whether packing a contribution's chunks with zstd pays: it gains a few per cent of int8's bytes,
// a third of bf16's, and takes both ends' CPUs.
#pragma once

#include <cstdint>
#include <optional>

#include "inter/bulk_sender.h"

namespace isthmus::inter {

struct ZstdFacts {
  std::uint64_t bytes = 0;                  // of the contribution, unpacked
  std::optional<BulkSender::Flow> slowest;  // of the lines that it goes over; none: not known yet
  std::optional<double> saves;              // of the bytes, the last time; none: not tried yet
  int parallel = 1;                         // jobs at once, at this end
};

// Where the line would need longer for the bytes that it saves than CPUs need for all of them; not
// where coding does not keep up with the lines. Before both are known: where it costs next to
// nothing.
inline bool zstd_pays(const ZstdFacts& facts) {
  constexpr double kSecondsPerByte = 2e-9;  // of one core, both ends together: docs/performance.md
  constexpr double kNothing = 0.05;         // seconds
  constexpr double kStarved = 0.25;
  if (!facts.slowest || !facts.saves)
    return static_cast<double>(facts.bytes) * kSecondsPerByte < kNothing;
  return facts.slowest->starved < kStarved &&
         facts.slowest->bytes_per_second * kSecondsPerByte < *facts.saves * facts.parallel;
}

}  // namespace isthmus::inter

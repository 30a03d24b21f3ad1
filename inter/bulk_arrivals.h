// BulkArrivals: whether a peer's chunks come, while none of them is whole. On a thin line one takes
// minutes, of which only bytes tell: they pause for no longer than a chunk takes, are not too few,
// and no more than what may be on its way at once. So neither who drips passes for a thin line, nor
// who sends what never becomes a chunk.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace isthmus::inter {

class BulkArrivals {
 public:
  // How many came in all, on every heartbeat at least. Less than before: some were of no chunk.
  void note_bytes(Nanoseconds now, std::uint64_t bytes) {
    if (bytes > bytes_) last_ = now;
    bytes_ = bytes;
    bytes_before_ = std::min(bytes_before_, bytes);
  }
  // The next chunk is waited for from now on: one is whole, or something is to come.
  void expect(Nanoseconds now) {
    since_ = last_ = now;
    bytes_before_ = bytes_;
  }

  // One of at most so many bytes, of which so many may be on their way at once. A pause shorter
  // than `pause_min` tells nothing.
  bool come(Nanoseconds now, double chunk_bytes, double at_once, Nanoseconds pause_min) const {
    const auto bytes = static_cast<double>(bytes_ - bytes_before_);
    const auto chunk_takes = chunk_bytes / std::max(1.0, bytes) * seconds_of(last_ - since_);
    const auto pause = std::max(
        pause_min, static_cast<Nanoseconds>(std::min(kPauseMaxSeconds, chunk_takes) * 1e9));
    return now - last_ < pause && bytes <= (1 + at_once) * chunk_bytes &&
           bytes >= kFewestPerSecond * seconds_of(now - since_ - pause);
  }

 private:
  static constexpr double kPauseMaxSeconds = 60;
  static constexpr double kFewestPerSecond = 256;  // of the least line, shared by many

  std::uint64_t bytes_ = 0, bytes_before_ = 0;
  Nanoseconds since_ = 0, last_ = 0;
};

}  // namespace isthmus::inter

// Path: one direction of an emulated line. It says when each packet arrives, and which never does:
// a transmit queue, losses, and propagation delay. It knows nothing of packets but their size, and
// the time is handed in, so an access line that several paths share is a Path too, of which only
// the queue is used.
//
// The queue is a fluid: the transmitter works off bytes at the rate, and is described by the time
// at which it will be idle. Losses come in runs (Gilbert, "Capacity of a burst-noise channel",
// 1960).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "base/random.h"

namespace isthmus::wan {

struct PathSettings {
  Nanoseconds delay = 0;       // one way
  Nanoseconds jitter = 0;      // up to so much more, uniform
  double bits_per_second = 0;  // 0: no limit, and no queue
  double queue_bytes = 0;      // 0: 100 ms of the rate, at least 64 KiB
  double loss = 0;             // share of packets, here and below
  double burst = 1;            // mean length of a run of lost packets; 1: independent losses
  double duplicate = 0;
  double corrupt = 0;
  bool reorder = false;  // jitter lets packets overtake each other
  bool down = false;     // nothing passes

  bool operator==(const PathSettings&) const = default;
};

// In packets as they are on the wire.
struct PathCounts {
  std::uint64_t packets = 0;  // that were let through
  std::uint64_t bytes = 0;
  std::uint64_t lost = 0;      // at random, or because the path was down
  std::uint64_t overflow = 0;  // that found the queue full
  std::uint64_t duplicated = 0;
  std::uint64_t corrupted = 0;
};

class Path {
 public:
  Path(const PathSettings& settings, Random random) : settings_(settings), random_(random) {}

  const PathSettings& settings() const { return settings_; }
  // The queue keeps the bytes that it holds at `now`, and works them off at the new rate where that
  // is higher. Where it is lower they leave when it was said that they would: the line would be
  // dead for as long as they take otherwise, since they do not come a second time.
  void change(const PathSettings& settings, Nanoseconds now);

  bool limited() const { return settings_.bits_per_second > 0; }
  double bytes_per_nanosecond() const { return settings_.bits_per_second / 8e9; }

  // When the last of `bytes` that come at `now` has left; nothing, and counted, if they do not fit.
  // `packets`: how many they are, for the count.
  std::optional<Nanoseconds> enqueue(Nanoseconds now, std::size_t bytes, std::size_t packets = 1);

  // The fate of the next packet; the losses are counted.
  bool loses();
  bool corrupts() { return settings_.corrupt > 0 && random_.chance(settings_.corrupt); }
  bool duplicates() { return settings_.duplicate > 0 && random_.chance(settings_.duplicate); }

  // When that which left at `left` arrives. Never before what left earlier, unless `reorder` is
  // set.
  Nanoseconds arrival(Nanoseconds left);

  // For choices about this path's packets that are not its own, such as which bit is flipped.
  Random& random() { return random_; }

  PathCounts counts;

 private:
  double queue_bytes_max() const;

  PathSettings settings_;
  Random random_;
  Nanoseconds idle_from_ = 0;     // of the transmitter
  Nanoseconds last_arrival_ = 0;  // the latest so far
  bool losing_ = false;           // inside a run of losses
};

}  // namespace isthmus::wan

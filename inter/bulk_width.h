// BulkWidth: how many TCP connections bulk to one peer should use. A congestion control that takes
// each loss for a full line leaves most of a lossy one unused, and the kernel's limits may be too
// small for a long fat one: where either keeps windows narrow, connections are added while goodput
// grows by more than a tenth, and again when it has fallen: windows start wide, and each loss
// narrows one. BBR needs no more than a few, which go on where one waits for what it lost.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/clock.h"
#include "inter/wire.h"

namespace isthmus::inter {

// What TCP knows of all bulk connections to a peer together, since each began.
struct BulkTotals {
  std::uint64_t acknowledged_bytes = 0;
  std::uint64_t resent_bytes = 0;
  Nanoseconds busy = 0;            // something was to be sent
  Nanoseconds limited = 0;         // of that: the kernel's limits were what held bytes back
  Nanoseconds round_trip_min = 0;  // the shortest; 0: not known

  void add(const TcpFacts& tcp);
};

class BulkWidth {
 public:
  // What the congestion control in force is best served by.
  enum class Most { one, some, many };
  // On a line that is wide enough there are more: each loss holds one of them up for a round trip
  // or two. On a thin one BBR would have to find the rate of the few that are left anew.
  static constexpr std::uint32_t kSome = 4, kSomeOfWide = 8;
  static constexpr std::uint32_t kManyAtFirst = 8;
  static constexpr std::uint32_t kLossyMin = 4;  // where losses keep windows small
  static constexpr double kGrowth = 1.1;

  static Most best_for(std::span<const BulkPath> paths);
  static std::uint32_t at_first(Most most);

  explicit BulkWidth(std::uint32_t limit) : limit_(limit) {}

  // The peer has a limit of its own.
  void limit_to(std::uint32_t limit);

  void widen_to(Most most);
  std::uint32_t wanted() const { return wanted_; }
  // Why so many, in a few words.
  std::string_view why() const { return why_; }
  // How many of them suffice: on a thin line each of many would have a window of a few packets,
  // which cannot tell a loss from the end of the stream but by waiting.
  std::uint32_t enough() const { return enough_; }

  // A session begins: what was learnt of a thin line may be of an outage.
  void begin() { enough_ = wanted_; }
  // Every connection has as much to send as it takes; or not any more. Goodput counts while they
  // do.
  void full(Nanoseconds now, bool is);
  // Now and then. Less than before: a connection has ended, and nothing is learnt.
  void carried(Nanoseconds now, const BulkTotals& totals);
  // Bytes that the peer has acknowledged, while `connections` were there.
  void arrived(Nanoseconds now, std::uint64_t bytes, std::uint32_t connections,
               Nanoseconds round_trip);

 private:
  // Less tells more of the moment than of the line.
  static constexpr Nanoseconds kStretchMin = 500 * kMillisecond;
  static constexpr int kStretchRoundTrips = 5;
  static constexpr std::uint32_t kArrivals = 16;
  // Of the most: less is a fall. With a queue the line itself may be slower, or the other direction
  // full; it has to be a far one then.
  static constexpr double kFallen = 0.9, kFallenFar = 0.75;
  static constexpr double kLossy = 3e-5;    // of all bytes: more than the end of a stream has
  static constexpr double kLimited = 0.25;  // of the time in which there is something to send
  static constexpr double kQueued = 1.25;   // of the shortest round trip: the line is full
  // The line may have become another one.
  static constexpr Nanoseconds kAgain = 300 * kSecond;
  static constexpr double kWindowBytesMin = 6000;           // four packets
  static constexpr double kGrowingWindowBytesMin = 24'000;  // losses keep it smaller above 0.5 %
  // Several connections under BBR take themselves for rivals, and keep a queue of one another's
  // packets: on a thin line it would be felt.
  static constexpr double kBbrWindowBytesMin = 48'000;
  // Of each of kSomeOfWide: the line is wide.
  static constexpr double kWideWindowBytesMin = 256'000;
  static constexpr double kFullShare = 0.8;  // of a time that tells what the line carries

  static std::string_view why_best(Most most);
  // Within the limit.
  void want(std::uint32_t connections, std::string_view why);
  void begin_stretch(Nanoseconds now);
  Nanoseconds full_time(Nanoseconds now) const;

  std::uint32_t limit_;
  Most most_ = Most::one;
  std::uint32_t wanted_ = 1, enough_ = 1;
  std::string_view why_ = why_best(Most::one);
  bool settled_ = true;
  Nanoseconds settled_at_ = 0;
  double goodput_before_ = 0;   // with fewer connections, bytes per second
  double goodput_settled_ = 0;  // the most since it was settled
  bool fallen_ = false;         // from that, in the last stretch
  bool doubted_ = false;        // it did not grow, the last time

  Nanoseconds full_ = 0;  // before full_since_
  bool is_full_ = false;
  Nanoseconds full_since_ = 0;

  // Since as many connections as wanted were there: what comes first was sent before.
  std::uint32_t connections_ = 0;
  Nanoseconds warm_until_ = 0;
  Nanoseconds full_at_first_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint32_t arrivals_ = 0;

  // As of the last carried().
  Nanoseconds looked_ = 0;
  BulkTotals totals_;
  std::string_view narrow_;  // what keeps windows so; "": nothing
  Nanoseconds full_when_looked_ = 0;
};

}  // namespace isthmus::inter

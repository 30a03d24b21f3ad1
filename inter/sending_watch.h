// SendingWatch: what the kernel counts on the connections on which a link test sends, while it is
// warm (WarmPhase). Until then congestion control looks for its rate, which it finds by filling the
// queue on the way until packets are lost: these losses are not the line's.
//
// What has arrived is told here and not by whoever receives: behind a lost segment a receiver reads
// nothing until it has come again, and then all at once, so that what a connection had held back
// before the warm phase would count as arrived in it.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "inter/link_test_report.h"
#include "inter/wire.h"

namespace isthmus::inter {

class SendingWatch {
 public:
  // Watches the connections that there are now.
  explicit SendingWatch(std::span<const BulkPath> paths);

  // A connection that has gone counts as it was last seen.
  void look(Nanoseconds now, std::span<const BulkPath> paths);
  // As of the last look nothing is on its way, nor waits to be.
  bool all_arrived() const { return waiting_bytes_ == 0; }
  // Of the warm phase; nothing of what only the test itself knows (`bytes`).
  LinkTestSent warm() const;

 private:
  struct Counts {
    std::uint64_t arrived = 0, segments = 0, segments_resent = 0;
    Nanoseconds busy = 0, limited_by_window = 0, limited_by_buffer = 0;
  };
  struct Path {
    Counts first, last;
  };
  static Counts counts_of(const TcpFacts& tcp);
  static void add(Counts& sum, const Counts& last, const Counts& first);

  std::map<ConnectionId, Path> paths_;
  std::vector<LinkTestSample> arrived_;
  std::vector<Counts> counts_;  // one for each of them
  std::uint64_t waiting_bytes_ = 0;
  LinkTestSent facts_;  // what is no count
};

}  // namespace isthmus::inter

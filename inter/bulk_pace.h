// BulkPace: how fast each bulk connection to a peer may send, while there is something to send.
//
//     polite       as polite_rate.h says; nothing to do here
//     BBR          all of them together as fast as the line carries (line_pace.h), in equal shares
//                  but for those that cannot use theirs at the moment
//     otherwise    as fast as the congestion control likes; those of the first, and all on a slow
//                  line, spread over each round trip (kSpread)
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>

#include "inter/forward_delay.h"
#include "inter/line_pace.h"
#include "inter/owned_tasks.h"
#include "inter/wire.h"

namespace isthmus::inter {

class BulkPace {
 public:
  BulkPace(Loop& loop, Wire& wire, GatewayId peer);

  // The connections that there are.
  void use(std::span<const ConnectionId> connections);
  // So many of them will be sent on, whatever they do at the moment; unless it is said: all.
  void suffice(std::uint32_t connections) { enough_ = connections; }
  void sending_begins();
  void sending_ends();
  void new_session();
  // What left at a time by our clock arrived at one by the peer's, and the answer took this long.
  void note_way(Nanoseconds left, Nanoseconds arrived, Nanoseconds round_trip) {
    forward_.add(loop_.now(), left, arrived, round_trip);
  }
  // Whether it helps to know often when things arrive.
  bool asks() const { return sending_ && shares_line_; }
  // Bytes per second that arrived lately, of all connections.
  void note_goodput(double goodput) { goodput_ = goodput; }

 private:
  struct Path {
    std::optional<std::uint64_t> delivered_bytes;  // by TCP, as of the last look
    std::optional<double> pace;
  };

  void look();
  void share_line(std::span<const BulkPath> facts);
  void spread();
  void set(ConnectionId connection, Path& path, std::optional<double> pace);

  Loop& loop_;
  Wire& wire_;
  const GatewayId peer_;
  std::map<ConnectionId, Path> paths_;
  std::uint32_t enough_ = std::numeric_limits<std::uint32_t>::max();
  LinePace line_;
  ForwardDelay forward_;
  std::uint64_t delivered_bytes_ = 0;  // on all of them
  double goodput_ = 0;                 // 0: not known yet
  bool sending_ = false;
  bool shares_line_ = false;
  OwnedTasks tasks_;  // its timer: the next look
};

}  // namespace isthmus::inter

// UnreachableLog: what the log says of a peer that does not let itself be dialed: each reason once
// until it is reached, however many connections are tried and however often. Of the bulk lane only
// where the control lane is up: else that has the same to say. Nothing in the half minute after the
// end of a connection that had lived: the line may be slow, the gateway start anew or have gone at
// the run's end, and what comes of that others say (session_ended).
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/event_log.h"
#include "inter/lane_end.h"
#include "inter/wire.h"

namespace isthmus::inter {

class UnreachableLog {
 public:
  // `log` and `peer`, its name, outlive it.
  UnreachableLog(EventLog& log, std::string_view peer) : log_(log), peer_(peer) {}

  // A connection has come up, or one that was up has ended.
  void up(Lane lane, Nanoseconds now) {
    auto& tried = on(lane);
    if (tried.up++ == 0) tried.began = now;
    tried.said.clear();
  }
  void down(Lane lane, Nanoseconds now) {
    auto& tried = on(lane);
    --tried.up;
    tried.ended.reset();
    if (now - tried.began >= kLived) tried.ended = now;
  }

  void failed(Lane lane, Nanoseconds now, std::string_view address, const std::string& reason) {
    auto& tried = on(lane);
    if (tried.up > 0 || (lane == Lane::bulk && on(Lane::control).up == 0)) return;
    if (tried.ended && now - *tried.ended < kQuiet) return;
    if (tried.said.size() >= kReasonsMax || !tried.said.insert(reason).second) return;
    log_.warning("wire_unreachable", {peer_},
                 {{"lane", to_string(lane)}, {"address", address}, {"reason", reason}});
  }

 private:
  static constexpr std::size_t kReasonsMax = 8;  // of many addresses of one name each has its own
  static constexpr Nanoseconds kQuiet = 30 * kSecond, kLived = 5 * kSecond;
  struct Tried {
    int up = 0;             // connections
    Nanoseconds began = 0;  // the first of them
    std::optional<Nanoseconds> ended;
    std::set<std::string> said;
  };
  Tried& on(Lane lane) { return lanes_[static_cast<std::size_t>(lane)]; }

  EventLog& log_;
  std::string_view peer_;
  std::array<Tried, 2> lanes_;
};

}  // namespace isthmus::inter

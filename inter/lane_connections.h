// LaneConnections: which of a lane's live connections the session uses. There are several while a
// peer redials (its old one may go down after the new one came up), and when two processes use one
// identity; only a frame that carries the session's number proves whose a connection is.
#pragma once

#include <algorithm>
#include <vector>

#include "inter/wire.h"

namespace isthmus::inter {

class LaneConnections {
 public:
  // What to send on; 0: none. Until one is proven, the newest.
  ConnectionId current() const { return current_; }
  const std::vector<ConnectionId>& live() const { return live_; }  // oldest first
  bool any() const { return !live_.empty(); }

  void up(ConnectionId connection) {
    live_.push_back(connection);
    if (!proven_) current_ = connection;
  }
  void down(ConnectionId connection) {
    std::erase(live_, connection);
    if (connection == current_) forget_session();
  }
  // A frame of the session came on it. What is still on its way on an older connection does not
  // lead back to that.
  void prove(ConnectionId connection) {
    if (std::find(live_.begin(), live_.end(), connection) == live_.end()) return;
    if (proven_ && connection < current_) return;
    current_ = connection;
    proven_ = true;
  }
  void forget_session() {
    proven_ = false;
    current_ = live_.empty() ? 0 : live_.back();
  }
  // For the session that begins, or is sought, on this one.
  void choose(ConnectionId connection) {
    forget_session();
    prove(connection);
  }

 private:
  std::vector<ConnectionId> live_;
  ConnectionId current_ = 0;
  bool proven_ = false;
};

}  // namespace isthmus::inter

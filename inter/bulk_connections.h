// BulkConnections: the live connections of a peer's bulk lane, and which of them the session may
// use: all that carried a frame of it. Each end numbers its places from 0 on, and says a
// connection's place on it (PROTOCOL.md, "Bulk connections"): one that takes the place of an older
// one was dialed because that one is gone, whether this end has noticed or not.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "inter/wire.h"

namespace isthmus::inter {

class BulkConnections {
 public:
  struct Connection {
    ConnectionId id = 0;
    std::uint32_t place = 0;                        // as this end says it
    std::optional<std::uint32_t> their_place = {};  // as the other end said it
    bool proven = false;
    bool replaced = false;
  };

  const std::vector<Connection>& live() const { return live_; }  // oldest first
  // What to send on, oldest first: those on which the other end has spoken in this session, which
  // it does as soon as it has both.
  std::vector<ConnectionId> usable() const {
    std::vector<ConnectionId> usable;
    for (const auto& connection : live_)
      if (connection.proven) usable.push_back(connection.id);
    return usable;
  }

  void up(ConnectionId id) {
    std::uint32_t place = 0;
    while (std::ranges::any_of(live_, [&](const auto& c) { return c.place == place; })) ++place;
    live_.push_back({.id = id, .place = place});
  }
  void down(ConnectionId id) {
    std::erase_if(live_, [&](const auto& connection) { return connection.id == id; });
  }
  void clear() { live_.clear(); }
  // A frame of the session came on it. What is still on its way on one that was replaced does not
  // lead back to that. True: usable() is another one now.
  bool prove(ConnectionId id) {
    const auto found = std::ranges::find(live_, id, &Connection::id);
    if (found == live_.end() || found->replaced) return false;
    return !std::exchange(found->proven, true);
  }
  // The peer says so, in a frame of the session.
  bool placed(ConnectionId id, std::uint32_t their_place) {
    bool changed = prove(id);
    for (auto& connection : live_)
      if (connection.id == id) {
        connection.their_place = their_place;
      } else if (connection.id < id && connection.their_place == their_place) {
        changed |= std::exchange(connection.proven, false);
        connection.replaced = true;
      }
    return changed;
  }
  bool proven(ConnectionId id) const {
    const auto found = std::ranges::find(live_, id, &Connection::id);
    return found != live_.end() && found->proven;
  }
  std::optional<std::uint32_t> place(ConnectionId id) const {
    const auto found = std::ranges::find(live_, id, &Connection::id);
    return found == live_.end() ? std::nullopt : std::optional(found->place);
  }
  void forget_session() {
    for (auto& connection : live_) connection = {.id = connection.id, .place = connection.place};
  }

 private:
  std::vector<Connection> live_;
};

}  // namespace isthmus::inter

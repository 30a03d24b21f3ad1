// A session of a scripted peer on several bulk connections.
#pragma once

#include <string>

#include "tests/inter/link_world.h"

namespace isthmus::inter {

inline Bytes granting(std::uint64_t session, std::uint64_t credit) {
  Ack ack;
  ack.session = session;
  ack.credit = credit;
  return ack.encode();
}

inline BulkPath path_with(const std::string& congestion_control, ConnectionId connection = 0) {
  BulkPath path;
  path.connection = connection;
  path.tcp.congestion_control = congestion_control;
  return path;
}

// A session whose bulk connections, from 2 on, have the places from 0 on.
inline void begin_on_connections(ScriptedPeer& peer, std::uint64_t credit, std::uint32_t count) {
  if (peer.paths.empty()) peer.paths = {path_with("cubic")};
  peer.begin_session();
  for (std::uint32_t place = 1; place < count; ++place) peer.link.wire_up(Lane::bulk, 2 + place);
  for (std::uint32_t place = 0; place < count; ++place)
    peer.bulk(Bind{peer.session, place}.encode(), 2 + place);
  peer.control(granting(peer.session, credit));
}

inline void begin_on_two_connections(ScriptedPeer& peer, std::uint64_t credit) {
  begin_on_connections(peer, credit, 2);
}

}  // namespace isthmus::inter

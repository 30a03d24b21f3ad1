// How ZeroMQ sockets live in a Loop. ZMQ_FD is edge-triggered and every call on a socket may
// swallow the edge, so whoever sends or receives outside of a turn says so: kick().
#pragma once

#include <functional>
#include <memory>

#include "inter/loop.h"
#include "inter/zmq_socket.h"

namespace isthmus::inter {

// Calls `turn` on the loop's thread whenever the socket may have something: a message, room, or an
// event. A turn takes a bounded number of messages, so that others have theirs; while the socket
// has more, turns follow. Never called from within kick() or the constructor.
//
// Destroyed before the socket, and before the loop; also from within a turn.
class SocketWatch {
 public:
  SocketWatch(Loop& loop, ZmqSocket& socket, std::function<void()> turn);
  ~SocketWatch();
  SocketWatch(const SocketWatch&) = delete;
  SocketWatch& operator=(const SocketWatch&) = delete;

  void kick();

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with handlers in flight
};

}  // namespace isthmus::inter

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

// Posts and one timer that end with their owner.
class OwnedTasks {
 public:
  explicit OwnedTasks(Loop& loop) : loop_(loop), alive_(std::make_shared<char>()) {}
  ~OwnedTasks() { stop_timer(); }
  OwnedTasks(const OwnedTasks&) = delete;
  OwnedTasks& operator=(const OwnedTasks&) = delete;

  void post(std::function<void()> function);
  // Replaces the timer that is armed.
  void start_timer(Nanoseconds delay, std::function<void()> function);
  void stop_timer();
  // Wraps a handler for somebody else's queue: does nothing once the owner is gone.
  template <class Function>
  auto guarded(Function function) {
    return [alive = std::weak_ptr<char>(alive_), function = std::move(function)](auto&&... args) {
      if (alive.lock()) function(std::forward<decltype(args)>(args)...);
    };
  }

 private:
  Loop& loop_;
  std::shared_ptr<char> alive_;  // handlers hold it weakly
  Loop::TimerId timer_ = 0;      // 0: none
};

}  // namespace isthmus::inter

// What the two ends of a control lane, dialing (inter/zmq_dialer.h) and listening
// (inter/zmq_listener.h), share. Internal to the wire (inter/zmq_wire.h).
#pragma once

#include <optional>

#include "inter/lane_end.h"
#include "inter/zmq_socket.h"
#include "inter/zmq_wire.h"

namespace isthmus::inter {

// The message that libzmq's queue had no room for. With it, send() knows before it takes a message
// whether there is room, and asks libzmq again only when that may have changed.
class Overflow {
 public:
  bool full() const { return message_.has_value(); }
  void put(ZmqMessage message) { message_ = std::move(message); }
  ZmqMessage& message() { return *message_; }
  void clear() { message_.reset(); }
  // Somebody was told busy, and is told when there is room again.
  void refuse() { refused_ = true; }
  bool take_refused() { return std::exchange(refused_, false); }

 private:
  std::optional<ZmqMessage> message_;
  bool refused_ = false;
};

// Messages that one turn of the loop takes from a socket, so that other sockets have theirs.
inline constexpr int kTurnMessagesMax = 64;

// Limits, queues and timeouts: all that does not depend on who dials.
Result<void> set_control_options(ZmqSocket& socket, const ZmqWireOptions& options);

}  // namespace isthmus::inter

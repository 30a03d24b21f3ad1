// What the two kinds of lane end, dialing (inter/zmq_dialer.h) and listening
// (inter/zmq_listener.h), share, and how they talk to the wire that owns them. Internal to the
// ZeroMQ wire.
#pragma once

#include <optional>

#include "inter/wire.h"
#include "inter/zmq_socket.h"
#include "inter/zmq_wire.h"

namespace isthmus::inter {

class LaneEnd {
 public:
  virtual ~LaneEnd() = default;
  // Errors: busy (LaneEvents::writable follows), unavailable.
  virtual Result<void> send(ConnectionId connection, Bytes message) = 0;
  // Ends the connection; LaneEvents::closed follows, from the loop. Nothing if it has ended.
  virtual void drop(ConnectionId connection, std::string_view reason) = 0;
};

// Calls come from the loop, never from within send() or drop().
class LaneEvents {
 public:
  virtual ~LaneEvents() = default;
  virtual ConnectionId next_connection() = 0;
  virtual void opened(ConnectionId connection, GatewayId peer, Lane lane, LaneEnd& end) = 0;
  virtual void closed(ConnectionId connection, std::string_view reason) = 0;
  virtual void received(ConnectionId connection, std::span<const std::byte> message) = 0;
  virtual void writable(ConnectionId connection) = 0;
  // A TCP connection was made; libzmq's I/O thread may close it at any time.
  virtual void connected(int descriptor) = 0;
  virtual bool is_peer(GatewayId id) const = 0;
  // Takes one of the connections that were refused for their key, which is in the log already.
  virtual bool take_refused() = 0;
};

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

constexpr std::size_t message_bytes_max(Lane lane) {
  return lane == Lane::control ? kControlMessageBytesMax : kBulkMessageBytesMax;
}

constexpr std::string_view to_string(Lane lane) {
  return lane == Lane::control ? "control" : "bulk";
}

// Messages that one turn of the loop takes from a socket, so that other sockets have theirs.
constexpr int turn_messages_max(Lane lane) { return lane == Lane::control ? 64 : 4; }

// Limits, queues and timeouts: all that does not depend on who dials.
Result<void> set_lane_options(ZmqSocket& socket, Lane lane, const ZmqWireOptions& options);

// Of a live TCP connection, at either end. False: the system does not have it, or not for us.
bool set_congestion_control(int descriptor, const std::string& name);

}  // namespace isthmus::inter

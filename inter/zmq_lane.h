// What the two ends of a control lane, dialing (inter/zmq_dialer.h) and listening
// (inter/zmq_listener.h), share. Internal to the wire (inter/zmq_wire.h).
#pragma once

#include <sys/types.h>

#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>

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

// The TCP socket behind a connection of libzmq's, which closes it whenever it likes: the number may
// be somebody else's by then, and the inode tells.
class LaneSocket {
 public:
  LaneSocket() = default;
  explicit LaneSocket(int descriptor);

  explicit operator bool() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  bool is_open() const;

 private:
  int descriptor_ = -1;
  ino_t inode_ = 0;
};

// Heartbeats of one connection, which both ends send: two empty parts, as the greeting is. They are
// our own, since ZeroMQ's end the process when they are due on a connection that was reset while
// its queue was full (libzmq 4.3.4, its issues 4364 and 4841): so when it goes on after a stop. The
// same happens when it answers those of a peer.
class LanePulse {
 public:
  void heard(Nanoseconds now) { heard_ = now; }
  // How long the connection may stay up before it is to be looked at again, on every heartbeat at
  // least; 0: it is dead. It is silent since anything came, a part of a message included.
  Nanoseconds patience(Nanoseconds now, const LaneSocket& socket, const ZmqWireOptions& options,
                       const LaneEvents& events, GatewayId peer);

  // `routing_id` goes before it, at the end that has several receivers. What ZmqSocket::send said.
  static int send(ZmqSocket& socket, ZmqMessage* routing_id = nullptr);

 private:
  // In control_timeout; what an idle link says on the bulk lane is half of it.
  static constexpr std::uint64_t kBulkBytesMin = 4096;

  Nanoseconds heard_ = 0;
  std::uint64_t bulk_bytes_ = 0;  // as they were
  Nanoseconds bulk_since_ = 0;    // at this time
  std::optional<Nanoseconds> bulk_came_;
};

// What TCP has brought of a message that has not ended: libzmq keeps the parts of one, however many
// there are, and hands over nothing before it has the last.
class UnfinishedMessage {
 public:
  static constexpr Nanoseconds kLookEvery = 250 * kMillisecond;

  // A whole one came, or the greeting.
  void ended() { ended_ = true; }
  // Looked at once in a while: no gateway has so much without an end, also to a loop that is late.
  bool is_too_long(const LaneSocket& socket);
  // At the last look.
  std::uint64_t bytes() const { return bytes_; }

 private:
  static constexpr std::uint64_t kBytesMax = 32 << 20;  // twice Inbox::kBytesMax

  bool ended_ = false;
  std::uint64_t before_ = 0, bytes_ = 0;
};

// What has come on a control lane and is not yet given to the loop. libzmq's own queue has no
// limit: on one that is full and whose connection is reset, a heartbeat that the peer asked for
// would end the process (LanePulse). So each turn empties it into this, which knows who sends too
// much.
class Inbox {
 public:
  // Of one turn: as many as an I/O thread opens meanwhile, and as many as others can wait for.
  static constexpr int kTakenMax = 4096, kGivenMax = 64;
  // Of one connection. More than this a gateway does not send without an answer (LinkOptions), a
  // second's acknowledgements of bulk included.
  static constexpr std::size_t kBytesMax = 16 << 20;

  bool empty() const { return messages_.empty(); }
  // False: its connection has too much here, and is to be dropped.
  bool put(ConnectionId connection, ZmqMessage message);
  // kGivenMax of them at most; those of a connection that is forgotten meanwhile are left out.
  void give_to(LaneEvents& events);
  void forget(ConnectionId connection);

 private:
  struct Arrived {
    ConnectionId connection = 0;
    ZmqMessage message;
  };
  // Of a message: itself, and what libzmq and this add.
  static std::size_t cost(const ZmqMessage& message) { return message.bytes().size() + 128; }

  std::deque<Arrived> messages_;
  std::unordered_map<ConnectionId, std::size_t> bytes_;
};

// Limits, queues and timeouts: all that does not depend on who dials.
Result<void> set_control_options(ZmqSocket& socket, const ZmqWireOptions& options);

}  // namespace isthmus::inter

// Wire: moves one message to an authenticated peer. It may lose, repeat or reorder messages, pushes
// back when its queue is full, and reports connections that come and go; what makes messages
// reliable is inter/link.h. Backends: ZeroMQ and TLS (make_zmq_wire in inter/zmq_wire.h) and the
// simulated one (inter/sim/simulated_network.h); both run the contract suite
// tests/inter/wire_contract.h.
//
// One thread: that of the Loop. A peer here is who the cryptography says it is, never who a message
// claims to be.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/byte_stream.h"
#include "base/result.h"
#include "base/shared_bytes.h"
#include "inter/tcp_facts.h"

namespace isthmus::inter {

// As in the roster.
using SiteId = std::uint32_t;

// One gateway process: the index is its place in the site's list of gateways.
struct GatewayId {
  SiteId site = 0;
  std::uint32_t index = 0;
  auto operator<=>(const GatewayId&) const = default;
};

// Control traffic never queues behind bulk: each lane is a connection of its own.
enum class Lane : std::uint8_t { control = 0, bulk = 1 };

// As a pace: as fast as the congestion control allows, but spread over each round trip. Windows
// that leave in bursts after a pause stay bursts: acknowledgements come as one after they have
// waited in the other direction's queue ("ACK compression", Zhang, Shenker and Clark 1991), and the
// line is idle between them.
inline constexpr double kSpread = std::numeric_limits<double>::infinity();

inline constexpr std::size_t kControlMessageBytesMax = 1 << 16;
inline constexpr std::size_t kBulkMessageBytesMax = (1 << 20) + 4096;  // a chunk and its header

// One live connection of a peer. Two connections of one lane mean that the peer reconnected, that
// two processes use one identity, or, of the bulk lane, that there are several: the link finds out
// which. A peer's old connection may go down long after its next one came up. Numbers grow: the
// newest connection has the highest.
using ConnectionId = std::uint64_t;

// How a connection of the bulk lane stands, as far as its kernel knows.
struct BulkPath {
  ConnectionId connection = 0;  // the wire's number for it
  TcpFacts tcp;
  std::uint64_t unwritten_bytes = 0;   // that send() took and the kernel has not yet
  bool dialed = false;                 // by this end
  std::string congestion_control_why;  // why it is the one in force
  struct Polite {                      // as inter/polite_rate.h says it
    double bytes_per_second = 0;
    Nanoseconds queueing_delay = 0, target = 0;
  };
  std::optional<Polite> polite;  // nothing: it does not yield to others
};

// What is sent: a head, then a body that others may hold as well.
struct WireMessage {
  WireMessage(Bytes whole) : head(std::move(whole)) {}
  WireMessage(Bytes front, SharedBytes rest) : head(std::move(front)), body(std::move(rest)) {}
  std::size_t size() const { return head.size() + body.size(); }
  Bytes whole() && {
    head.insert(head.end(), body.begin(), body.end());
    return std::move(head);
  }

  Bytes head;
  SharedBytes body;
};

class WireReceiver {
 public:
  virtual ~WireReceiver() = default;
  // At most kControlMessageBytesMax or kBulkMessageBytesMax bytes: longer ones never arrive.
  virtual void on_message(GatewayId peer, Lane lane, ConnectionId connection,
                          const SharedBytes& message) = 0;
  // A lane to this peer can be used: its first message may follow. A listening end may learn of a
  // peer only by its first message.
  virtual void on_up(GatewayId peer, Lane lane, ConnectionId connection) = 0;
  virtual void on_down(GatewayId peer, Lane lane, ConnectionId connection) = 0;
  // After send() said busy: there is room again.
  virtual void on_writable(GatewayId peer, Lane lane, ConnectionId connection) = 0;
};

class Wire {
 public:
  virtual ~Wire() = default;

  // Before anything else; the receiver outlives the wire's use.
  virtual void receive_with(WireReceiver& receiver) = 0;

  // Hands the message to the given connection of the lane, or, with 0, to the newest. Errors: busy
  // (queue full; on_writable follows, or the connection's on_down), unavailable (no such connection
  // now), too_large.
  virtual Result<void> send(GatewayId peer, Lane lane, WireMessage message,
                            ConnectionId connection = 0) = 0;

  // Drops the given connection of the lane, or, with 0, the newest, and, at the end that dials,
  // dials again: after silence, or when a connection misbehaves. Nothing when there is none.
  virtual void reset(GatewayId peer, Lane lane, ConnectionId connection) = 0;

  // How many connections the bulk lane should have: the end that dials makes more, up to its own
  // limit, and keeps what it has where fewer are asked for. At both ends, what waits in connections
  // to be sent is shared among so many.
  virtual void widen(GatewayId peer, std::uint32_t connections) { (void)peer, (void)connections; }
  // The peer takes no more of them than this, as it says: the end that dials ends what it has
  // beyond, and makes no others.
  virtual void limit_width(GatewayId peer, std::uint32_t most) { (void)peer, (void)most; }

  // A connection of the bulk lane sends no faster from now on; nothing: as fast as it can; kSpread:
  // as fast as well, and not in bursts any more.
  virtual void pace(GatewayId peer, ConnectionId connection,
                    std::optional<double> bytes_per_second) {
    (void)peer, (void)connection, (void)bytes_per_second;
  }
  // All connections of the bulk lane together, to whatever peers, send no faster from now on, and
  // leave to control what that takes of it; in pieces as rate_limit.h has them. 0: no limit.
  virtual void limit_bulk(double bytes_per_second) { (void)bytes_per_second; }

  // Bytes handed to the network for this peer, with the wire's own framing and sealing, on both
  // lanes; and received, also on one of them, parts of messages too.
  virtual std::uint64_t bytes_sent(GatewayId peer) const = 0;
  virtual std::uint64_t bytes_received_on(GatewayId peer, Lane lane) const = 0;
  std::uint64_t bytes_received(GatewayId peer) const {
    return bytes_received_on(peer, Lane::control) + bytes_received_on(peer, Lane::bulk);
  }
  // What a message adds to them.
  virtual std::uint64_t bytes_of(Lane lane, std::size_t message_bytes) const {
    (void)lane;
    return message_bytes;
  }

  // Of each live connection of the bulk lane, the newest last; none where no kernel carries it.
  virtual std::vector<BulkPath> bulk_paths(GatewayId) const { return {}; }
};

}  // namespace isthmus::inter

template <>
struct std::hash<isthmus::inter::GatewayId> {
  std::size_t operator()(isthmus::inter::GatewayId id) const {
    return std::hash<std::uint64_t>()((std::uint64_t{id.site} << 32) | id.index);
  }
};

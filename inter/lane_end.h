// What the ends of lanes are to the wire that owns them (inter/zmq_wire.h), whichever transport and
// whoever dials: inter/zmq_dialer.h, inter/zmq_listener.h, inter/tls_dialer.h,
// inter/tls_listener.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "inter/wire.h"

namespace isthmus::inter {

class LaneEnd {
 public:
  virtual ~LaneEnd() = default;
  // Errors: busy (LaneEvents::writable follows), unavailable.
  virtual Result<void> send(ConnectionId connection, WireMessage message) = 0;
  // Ends the connection; LaneEvents::closed follows, from the loop. Nothing if it has ended.
  virtual void drop(ConnectionId connection, std::string_view reason) = 0;
  virtual std::optional<BulkPath> path(ConnectionId) const { return std::nullopt; }
  // It is one of so many to its peer: what waits in it to be sent is that share of what one may
  // hold, but one message and 64 KiB in the kernel at least.
  virtual void share(ConnectionId connection, std::uint32_t connections) {
    (void)connection, (void)connections;
  }
  // Another limit holds for the lane (TlsLane::limit): what waits at the one of before no longer
  // does.
  virtual void limit_changed(ConnectionId connection) { (void)connection; }
  // As Wire::pace.
  virtual void pace(ConnectionId connection, std::optional<double> bytes_per_second) {
    (void)connection, (void)bytes_per_second;
  }
};

// What has passed over one connection, its handshake included. Written by whoever moves the bytes.
struct LaneMeter {
  std::atomic<std::uint64_t> sent = 0;
  std::atomic<std::uint64_t> received = 0;
};

// Calls come from the loop, never from within send() or drop().
class LaneEvents {
 public:
  virtual ~LaneEvents() = default;
  virtual ConnectionId next_connection() = 0;
  // The meter is right when the connection closes, too.
  virtual void opened(ConnectionId connection, GatewayId peer, Lane lane, LaneEnd& end,
                      std::shared_ptr<const LaneMeter> meter) = 0;
  virtual void closed(ConnectionId connection, std::string_view reason) = 0;
  virtual void received(ConnectionId connection, const SharedBytes& message) = 0;
  virtual void writable(ConnectionId connection) = 0;
  virtual bool is_peer(GatewayId id) const = 0;
  // Since data last came on any bulk connection of this peer. Nothing: it has none.
  virtual std::optional<Nanoseconds> bulk_silence(GatewayId peer) const = 0;
  // What has come on all that it had.
  virtual std::uint64_t bulk_bytes_received(GatewayId peer) const = 0;
};

constexpr std::size_t message_bytes_max(Lane lane) {
  return lane == Lane::control ? kControlMessageBytesMax : kBulkMessageBytesMax;
}

constexpr std::string_view to_string(Lane lane) {
  return lane == Lane::control ? "control" : "bulk";
}

// A peer that opens ever more connections of a lane than it may have loses some; while it redials
// it may have a few more.
inline constexpr std::size_t kSpareConnectionsMax = 7;

}  // namespace isthmus::inter

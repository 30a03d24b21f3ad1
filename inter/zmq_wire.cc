#include "inter/zmq_wire.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include "base/assert.h"
#include "inter/socket_check.h"
#include "inter/tcp_address.h"
#include "inter/zap_handler.h"
#include "inter/zmq_dialer.h"
#include "inter/zmq_lane.h"
#include "inter/zmq_listener.h"

namespace isthmus::inter {

namespace {

constexpr std::array kLanes{Lane::control, Lane::bulk};

// A peer that opens ever more connections of a lane loses its oldest.
constexpr std::size_t kConnectionsPerLaneMax = 8;

// Sockets besides those of peers: listening ones, monitors and the ZapHandler's, with room.
constexpr int kOwnSockets = 32;
// A dialed lane: its socket, and both ends of its monitor; twice, while one replaces another.
constexpr int kSocketsPerPeer = 2 * 3 * 2;

void raise_descriptor_limit() {
  constexpr rlim_t kEnough = 65536;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kEnough) return;
  limit.rlim_cur = std::min(limit.rlim_max, kEnough);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

class ZmqWire final : public Wire, public LaneEvents {
 public:
  ZmqWire(Loop& loop, EventLog& log, ZmqWireOptions options)
      : loop_(loop), log_(log), options_(std::move(options)) {}

  Result<void> open();

  void receive_with(WireReceiver& receiver) override;
  Result<void> send(GatewayId peer, Lane lane, Bytes message, ConnectionId connection) override;
  void reset(GatewayId peer, Lane lane, ConnectionId connection) override;
  std::uint64_t bytes_sent(GatewayId peer) const override;
  std::uint64_t bytes_received(GatewayId peer) const override;

 private:
  struct Peer {
    ZmqPeer entry;
    std::array<std::unique_ptr<ZmqDialer>, 2> dialers;     // null: it dials us, if anybody
    std::array<std::vector<ConnectionId>, 2> connections;  // oldest first
    std::uint64_t bytes_sent = 0;
    std::uint64_t bytes_received = 0;

    std::vector<ConnectionId>& on(Lane lane) { return connections[static_cast<std::size_t>(lane)]; }
  };
  struct Connection {
    GatewayId peer;
    Lane lane = Lane::control;
    LaneEnd* end = nullptr;
    bool dropped = false;  // nothing more in or out; closed() follows
  };

  Result<void> listen();
  Result<void> find_twin(const CurveKeyPair& listed);
  Result<void> add_peer(const ZmqPeer& peer);
  bool dials(const ZmqPeer& peer) const;
  ConnectionId newest(Peer& peer, Lane lane) const;
  void drop(ConnectionId id, std::string_view reason);

  ConnectionId next_connection() override { return ++last_connection_; }
  void opened(ConnectionId id, GatewayId peer, Lane lane, LaneEnd& end) override;
  void closed(ConnectionId id, std::string_view reason) override;
  void received(ConnectionId id, std::span<const std::byte> message) override;
  void writable(ConnectionId id) override;
  void connected(int descriptor) override;
  bool is_peer(GatewayId id) const override { return peers_.contains(id); }
  bool take_refused() override { return zap_->take_refused(); }

  Loop& loop_;
  EventLog& log_;
  const ZmqWireOptions options_;
  WireReceiver* receiver_ = nullptr;
  ConnectionId last_connection_ = 0;
  bool said_no_congestion_control_ = false;
  std::unordered_map<ConnectionId, Connection> connections_;
  // In this order they are destroyed last to first: no socket outlives the context, and the
  // ZapHandler outlives the listeners.
  std::unique_ptr<ZmqContext> context_;
  std::unique_ptr<ZapHandler> zap_;
  std::array<std::unique_ptr<ZmqListener>, 2> listeners_;
  std::map<GatewayId, Peer> peers_;
};

Result<void> ZmqWire::open() {
  if (options_.secret_key.size() != 32)
    return Error{ErrorCode::invalid_argument, "a CURVE secret key has 32 bytes"};
  raise_descriptor_limit();
  ISTHMUS_TRY(
      context_,
      ZmqContext::make(options_.io_threads,
                       kOwnSockets + kSocketsPerPeer * static_cast<int>(options_.peers.size())));
  ISTHMUS_TRY(zap_, ZapHandler::start(*context_, loop_.clock(), log_));
  for (const auto& peer : options_.peers) ISTHMUS_CHECK(add_peer(peer));
  return options_.listen.empty() ? Result<void>{} : listen();
}

Result<void> ZmqWire::listen() {
  ISTHMUS_TRY(const auto control, parse_tcp_address(options_.listen));
  for (const auto lane : kLanes) {
    ISTHMUS_TRY(listeners_[static_cast<std::size_t>(lane)],
                ZmqListener::make(loop_, log_, *context_, options_, *this, lane,
                                  lane_address(control, lane)));
  }
  // Listed for the check alone, under a name that is no gateway's.
  const auto listed = make_curve_key_pair();
  zap_->list(listed.public_key, "check");
  zap_->log_refusals(false);
  Result<void> safe;
  for (const auto lane : kLanes) {
    const auto address = local_address(lane_address(control, lane));
    if (safe) safe = check_listening_socket(address.endpoint(), options_.public_key, listed);
    listeners_[static_cast<std::size_t>(lane)]->expect_ends(kProbesUnnamed);
  }
  if (safe) safe = find_twin(listed);
  zap_->log_refusals(true);
  zap_->unlist(listed.public_key);
  ISTHMUS_CHECK(std::move(safe));
  log_.info("wire_listening", {},
            {{"control", lane_address(control, Lane::control).endpoint()},
             {"bulk", lane_address(control, Lane::bulk).endpoint()}});
  return {};
}

// A second process with this identity, on another machine, may be who peers dial.
Result<void> ZmqWire::find_twin(const CurveKeyPair& listed) {
  if (options_.own_address.empty()) return {};
  ISTHMUS_TRY(const auto address, parse_tcp_address(options_.own_address));
  ISTHMUS_TRY(const auto outcome,
              check_own_address(address.endpoint(), options_.public_key, listed));
  if (outcome == ProbeOutcome::accepted)
    listeners_[static_cast<std::size_t>(Lane::control)]->expect_ends(1);
  else
    log_.info("own_address_not_checked", {},
              {{"address", options_.own_address},
               {"outcome", to_string(outcome)},
               {"meaning", "a router may not lead it back here; peers may still reach it"}});
  return {};
}

bool ZmqWire::dials(const ZmqPeer& peer) const {
  if (peer.address.empty()) return false;
  return options_.self > peer.id || options_.listen.empty() || options_.own_address.empty();
}

Result<void> ZmqWire::add_peer(const ZmqPeer& entry) {
  if (entry.id == options_.self || peers_.contains(entry.id))
    return Error{ErrorCode::invalid_argument,
                 fmt::format("gateway {} is listed twice", user_id_of(entry.id))};
  auto& peer = peers_[entry.id];
  peer.entry = entry;
  zap_->list(entry.key, user_id_of(entry.id));
  if (dials(entry)) {
    ISTHMUS_TRY(const auto control, parse_tcp_address(entry.address));
    for (const auto lane : kLanes)
      peer.dialers[static_cast<std::size_t>(lane)] = std::make_unique<ZmqDialer>(
          loop_, log_, *context_, options_, *this, peer.entry, lane, lane_address(control, lane));
  } else if (options_.listen.empty()) {
    log_.warning("wire_no_address", {entry.name},
                 {{"reason",
                   "neither gateway has an address: their sites exchange through "
                   "others, or not at all"}});
  }
  return {};
}

void ZmqWire::receive_with(WireReceiver& receiver) {
  ISTHMUS_ASSERT(receiver_ == nullptr);
  receiver_ = &receiver;
  for (auto& listener : listeners_)
    if (listener) listener->start();
  for (auto& [id, peer] : peers_)
    for (auto& dialer : peer.dialers)
      if (dialer) dialer->start();
}

Result<void> ZmqWire::send(GatewayId peer_id, Lane lane, Bytes message, ConnectionId id) {
  if (message.size() > message_bytes_max(lane))
    return Error{ErrorCode::too_large, fmt::format("a message of {} bytes on the {} lane",
                                                   message.size(), to_string(lane))};
  const auto no_connection = [&] {
    return Error{ErrorCode::unavailable,
                 fmt::format("gateway {} is not connected", user_id_of(peer_id))};
  };
  const auto peer = peers_.find(peer_id);
  if (peer == peers_.end()) return no_connection();
  if (id == 0) id = newest(peer->second, lane);
  const auto found = connections_.find(id);
  if (found == connections_.end() || found->second.dropped || found->second.peer != peer_id ||
      found->second.lane != lane)
    return no_connection();
  const auto bytes = zmq_wire_bytes(message.size());
  ISTHMUS_CHECK(found->second.end->send(id, std::move(message)));
  peer->second.bytes_sent += bytes;
  return {};
}

// 0: none.
ConnectionId ZmqWire::newest(Peer& peer, Lane lane) const {
  ConnectionId newest = 0;
  for (const auto id : peer.on(lane))
    if (!connections_.at(id).dropped) newest = id;
  return newest;
}

void ZmqWire::reset(GatewayId peer_id, Lane lane, ConnectionId id) {
  const auto peer = peers_.find(peer_id);
  if (peer == peers_.end()) return;
  if (id == 0) id = newest(peer->second, lane);
  const auto found = connections_.find(id);
  if (found != connections_.end() && found->second.peer == peer_id && found->second.lane == lane)
    drop(id, "reset");
}

void ZmqWire::drop(ConnectionId id, std::string_view reason) {
  auto& connection = connections_.at(id);
  if (std::exchange(connection.dropped, true)) return;
  connection.end->drop(id, reason);
}

std::uint64_t ZmqWire::bytes_sent(GatewayId peer) const {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? 0 : found->second.bytes_sent;
}

std::uint64_t ZmqWire::bytes_received(GatewayId peer) const {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? 0 : found->second.bytes_received;
}

void ZmqWire::connected(int descriptor) {
  const auto& name = options_.congestion_control;
  if (name.empty() || set_congestion_control(descriptor, name)) return;
  if (std::exchange(said_no_congestion_control_, true)) return;
  log_.info("wire_no_congestion_control", {},
            {{"wanted", name},
             {"what_to_do", "load the kernel module tcp_" + name +
                                " and add it to net.ipv4.tcp_allowed_congestion_control"}});
}

void ZmqWire::opened(ConnectionId id, GatewayId peer_id, Lane lane, LaneEnd& end) {
  auto& peer = peers_.at(peer_id);
  connections_.emplace(id, Connection{peer_id, lane, &end});
  auto& connections = peer.on(lane);
  connections.push_back(id);
  const bool dialing = peer.dialers[static_cast<std::size_t>(lane)].get() == &end;
  peer.bytes_sent += dialing ? kZmqHandshakeBytesDialing : kZmqHandshakeBytesListening;
  peer.bytes_received += dialing ? kZmqHandshakeBytesListening : kZmqHandshakeBytesDialing;
  log_.info("wire_up", {peer.entry.name},
            {{"lane", to_string(lane)}, {"connection", id}, {"dialed", dialing}});
  if (connections.size() > kConnectionsPerLaneMax) drop(connections.front(), "too many");
  receiver_->on_up(peer_id, lane, id);
}

void ZmqWire::closed(ConnectionId id, std::string_view reason) {
  const auto found = connections_.find(id);
  ISTHMUS_ASSERT(found != connections_.end());
  const auto connection = found->second;
  connections_.erase(found);
  auto& peer = peers_.at(connection.peer);
  std::erase(peer.on(connection.lane), id);
  log_.info("wire_down", {peer.entry.name},
            {{"lane", to_string(connection.lane)}, {"connection", id}, {"reason", reason}});
  receiver_->on_down(connection.peer, connection.lane, id);
}

void ZmqWire::received(ConnectionId id, std::span<const std::byte> message) {
  const auto& connection = connections_.at(id);
  if (connection.dropped) return;
  peers_.at(connection.peer).bytes_received += zmq_wire_bytes(message.size());
  receiver_->on_message(connection.peer, connection.lane, id, message);
}

void ZmqWire::writable(ConnectionId id) {
  const auto connection = connections_.at(id);
  if (!connection.dropped) receiver_->on_writable(connection.peer, connection.lane);
}

}  // namespace

Result<std::unique_ptr<Wire>> make_zmq_wire(Loop& loop, EventLog& log,
                                            const ZmqWireOptions& options) {
  auto wire = std::make_unique<ZmqWire>(loop, log, options);
  ISTHMUS_CHECK(wire->open());
  return wire;
}

}  // namespace isthmus::inter

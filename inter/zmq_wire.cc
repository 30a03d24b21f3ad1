#include "inter/zmq_wire.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <unordered_map>

#include "base/assert.h"
#include "inter/congestion_control.h"
#include "inter/log_pace.h"
#include "inter/socket_check.h"
#include "inter/tcp_address.h"
#include "inter/tls_dialer.h"
#include "inter/tls_lane.h"
#include "inter/tls_listener.h"
#include "inter/unreachable_log.h"
#include "inter/zap_handler.h"
#include "inter/zmq_dialer.h"
#include "inter/zmq_lane.h"
#include "inter/zmq_listener.h"

namespace isthmus::inter {

namespace {

// Sockets besides those of peers: listening ones, monitors and the ZapHandler's, with room.
constexpr int kOwnSockets = 32;
// A dialed lane: its socket, and both ends of its monitor; twice, while one replaces another.
constexpr int kSocketsPerPeer = 3 * 2;
// Of a peer's connections that come and go, logged at once: twice as many as it may have.
constexpr int kComingsLogged = 256;

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
      : loop_(loop),
        log_(log),
        options_(std::move(options)),
        congestion_(log, options_.congestion_control) {}
  ~ZmqWire() override {
    names_.reset();  // whose threads hand over what they found through the lane
    if (lane_) lane_->stop();
  }

  Result<void> open();

  void receive_with(WireReceiver& receiver) override;
  Result<void> send(GatewayId peer, Lane lane, WireMessage message,
                    ConnectionId connection) override;
  void reset(GatewayId peer, Lane lane, ConnectionId connection) override;
  std::uint64_t bytes_sent(GatewayId peer) const override;
  std::uint64_t bytes_received_on(GatewayId peer, Lane lane) const override;
  std::uint64_t bytes_of(Lane lane, std::size_t message_bytes) const override {
    return lane == Lane::bulk ? tls_wire_bytes(message_bytes) : zmq_wire_bytes(message_bytes);
  }
  std::vector<BulkPath> bulk_paths(GatewayId peer) const override;
  void widen(GatewayId peer, std::uint32_t connections) override;
  void limit_width(GatewayId peer, std::uint32_t most) override;
  void pace(GatewayId peer, ConnectionId connection,
            std::optional<double> bytes_per_second) override;
  void limit_bulk(double bytes_per_second) override;

 private:
  struct Peer {
    ZmqPeer entry;
    std::optional<UnreachableLog> unreachable;             // where we dial
    std::unique_ptr<ZmqDialer> control_dialer;             // null: it dials us, if anybody
    TcpAddress bulk_address;                               // that we dial
    std::vector<std::unique_ptr<TlsDialer>> bulk_dialers;  // each a connection
    std::uint32_t bulk_width = 1;                          // as widen() said
    std::uint32_t bulk_width_max;                          // of ours and of the peer's, the lower
    std::array<std::vector<ConnectionId>, 2> connections;  // oldest first
    // Of connections that have closed.
    std::array<std::uint64_t, 2> bytes_sent{}, bytes_received{};
    LogPace ups_logged{kSecond, kComingsLogged}, downs_logged{kSecond, kComingsLogged};

    std::vector<ConnectionId>& on(Lane lane) { return connections[static_cast<std::size_t>(lane)]; }
  };
  struct Connection {
    GatewayId peer;
    Lane lane = Lane::control;
    LaneEnd* end = nullptr;
    std::shared_ptr<const LaneMeter> meter;
    bool dropped = false;  // nothing more in or out; closed() follows
  };

  Result<void> listen();
  Result<void> check_control(const std::string& endpoint);
  Result<void> check_bulk(const TcpAddress& address);
  Result<void> find_twin(const security::SigningKey& listed);
  HostNames::LookUp look_up() const {
    return options_.look_up_host ? options_.look_up_host : look_up_host;
  }
  std::uint64_t bytes(GatewayId peer, Lane lane, std::array<std::uint64_t, 2> Peer::*closed,
                      std::atomic<std::uint64_t> LaneMeter::*live) const;
  Result<void> add_peer(const ZmqPeer& peer);
  bool dials(const ZmqPeer& peer) const;
  ConnectionId newest(Peer& peer, Lane lane) const;
  void drop(ConnectionId id, std::string_view reason);

  ConnectionId next_connection() override { return ++last_connection_; }
  void opened(ConnectionId id, GatewayId peer, Lane lane, LaneEnd& end,
              std::shared_ptr<const LaneMeter> meter) override;
  void closed(ConnectionId id, std::string_view reason) override;
  void received(ConnectionId id, const SharedBytes& message) override;
  void writable(ConnectionId id) override;
  bool is_peer(GatewayId id) const override { return peers_.contains(id); }
  std::optional<Nanoseconds> bulk_silence(GatewayId peer) const override;
  std::uint64_t bulk_bytes_received(GatewayId peer) const override {
    return bytes_received_on(peer, Lane::bulk);
  }

  Loop& loop_;
  EventLog& log_;
  const ZmqWireOptions options_;
  WireReceiver* receiver_ = nullptr;
  ConnectionId last_connection_ = 0;
  CongestionControl congestion_;
  std::unordered_map<ConnectionId, Connection> connections_;
  // In this order they are destroyed last to first: no socket outlives the context, the ZapHandler
  // outlives the control listener, and no connection the lane.
  std::unique_ptr<ZmqContext> context_;
  std::unique_ptr<ZapHandler> zap_;
  std::unique_ptr<TlsLane> lane_;
  std::unique_ptr<ZmqListener> control_listener_;
  std::unique_ptr<TlsListener> bulk_listener_;
  std::optional<HostNames> names_;
  std::map<GatewayId, Peer> peers_;
};

Result<void> ZmqWire::open() {
  ISTHMUS_ASSERT(options_.identity != nullptr);
  raise_descriptor_limit();
  ISTHMUS_TRY(
      context_,
      ZmqContext::make(1, kOwnSockets + kSocketsPerPeer * static_cast<int>(options_.peers.size())));
  ISTHMUS_TRY(zap_, ZapHandler::start(*context_, loop_.clock(), log_));
  ISTHMUS_TRY(lane_, TlsLane::make(loop_, log_, options_, congestion_));
  names_.emplace(loop_, lane_->mailbox(), look_up());
  for (const auto& peer : options_.peers) ISTHMUS_CHECK(add_peer(peer));
  return options_.listen.empty() ? Result<void>{} : listen();
}

Result<void> ZmqWire::listen() {
  ISTHMUS_TRY(const auto control, parse_tcp_address(options_.listen));
  ISTHMUS_TRY(control_listener_, ZmqListener::make(loop_, log_, *context_, options_, *this,
                                                   congestion_, *zap_, control));
  // libzmq has found out what a name, of a host or of an interface, means here.
  ISTHMUS_TRY(const auto bound, control_listener_->endpoint());
  ISTHMUS_TRY(const auto numeric, parse_tcp_address(bound.substr(bound.find("//") + 2)));
  const auto bulk = lane_address(numeric, Lane::bulk);
  ISTHMUS_TRY(bulk_listener_, TlsListener::make(*lane_, *this, bulk));
  for (const auto& peer : options_.peers) bulk_listener_->list(peer.identity, peer.id);
  ISTHMUS_CHECK(check_control(local_address(control).endpoint()));
  ISTHMUS_CHECK(check_bulk(local_address(bulk)));
  log_.info(
      "wire_listening", {},
      {{"control", control.endpoint()}, {"bulk", lane_address(control, Lane::bulk).endpoint()}});
  return {};
}

Result<void> ZmqWire::check_control(const std::string& endpoint) {
  // Listed for the check alone, under a name that is no gateway's.
  const auto listed = make_curve_key_pair();
  zap_->list(listed.public_key, "check");
  zap_->log_refusals(false);
  auto safe = check_listening_socket(endpoint, options_.identity->public_part().curve_key, listed);
  control_listener_->expect_ends(kProbesUnnamed);
  zap_->log_refusals(true);
  zap_->unlist(listed.public_key);
  return safe;
}

// The first probe gets in and leaves; by the end of the others that has been noticed.
Result<void> ZmqWire::check_bulk(const TcpAddress& address) {
  const auto listed = security::SigningKey::generate();
  bulk_listener_->list_for_check(listed.public_key());
  bulk_listener_->log_refusals(false);
  auto safe = find_twin(listed);
  if (safe) safe = check_bulk_socket(address, options_.identity->public_part().identity, listed);
  bulk_listener_->log_refusals(true);
  bulk_listener_->unlist_check();
  return safe;
}

// A second process with this identity, on another machine, may be who peers dial.
Result<void> ZmqWire::find_twin(const security::SigningKey& listed) {
  if (options_.own_address.empty()) return {};
  ISTHMUS_TRY(const auto address, parse_tcp_address(options_.own_address));
  ISTHMUS_TRY(const auto outcome,
              check_own_address(lane_address(address, Lane::bulk),
                                options_.identity->public_part().identity, listed, look_up()));
  if (outcome != ProbeOutcome::accepted)
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
                 fmt::format("gateway {} is listed twice", entry.name)};
  auto& peer = peers_[entry.id];
  peer.entry = entry;
  peer.bulk_width_max = options_.bulk_connections_max;
  zap_->list(entry.key, user_id_of(entry.id));
  if (dials(entry)) {
    ISTHMUS_TRY(const auto control, parse_tcp_address(entry.address));
    peer.unreachable.emplace(log_, peer.entry.name);
    peer.control_dialer =
        std::make_unique<ZmqDialer>(loop_, log_, *context_, options_, *this, congestion_,
                                    *peer.unreachable, *names_, peer.entry, control);
    peer.bulk_address = lane_address(control, Lane::bulk);
    widen(entry.id, 1);
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
  lane_->mailbox().start();
  if (control_listener_) control_listener_->start();
  for (auto& [id, peer] : peers_) {
    if (!peer.control_dialer) continue;
    peer.control_dialer->start();
    for (const auto& dialer : peer.bulk_dialers) dialer->start();
  }
}

Result<void> ZmqWire::send(GatewayId peer_id, Lane lane, WireMessage message, ConnectionId id) {
  if (message.size() > message_bytes_max(lane))
    return Error{ErrorCode::too_large, fmt::format("a message of {} bytes on the {} lane",
                                                   message.size(), to_string(lane))};
  const auto no_connection = [&] {
    return Error{ErrorCode::unavailable,
                 fmt::format("{} is not connected", options_.name_of(peer_id))};
  };
  const auto peer = peers_.find(peer_id);
  if (peer == peers_.end()) return no_connection();
  if (id == 0) id = newest(peer->second, lane);
  const auto found = connections_.find(id);
  if (found == connections_.end() || found->second.dropped || found->second.peer != peer_id ||
      found->second.lane != lane)
    return no_connection();
  const auto bytes = bytes_of(lane, message.size());
  auto sent = found->second.end->send(id, std::move(message));
  if (sent && lane == Lane::control) lane_->pay(bytes);
  return sent;
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

std::uint64_t ZmqWire::bytes(GatewayId id, Lane lane, std::array<std::uint64_t, 2> Peer::*closed,
                             std::atomic<std::uint64_t> LaneMeter::*live) const {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return 0;
  const auto at = static_cast<std::size_t>(lane);
  auto sum = (found->second.*closed)[at];
  for (const auto connection : found->second.connections[at])
    sum += *connections_.at(connection).meter.*live;
  return sum;
}

std::uint64_t ZmqWire::bytes_sent(GatewayId peer) const {
  return bytes(peer, Lane::control, &Peer::bytes_sent, &LaneMeter::sent) +
         bytes(peer, Lane::bulk, &Peer::bytes_sent, &LaneMeter::sent);
}

std::uint64_t ZmqWire::bytes_received_on(GatewayId peer, Lane lane) const {
  return bytes(peer, lane, &Peer::bytes_received, &LaneMeter::received);
}

std::vector<BulkPath> ZmqWire::bulk_paths(GatewayId id) const {
  std::vector<BulkPath> paths;
  const auto found = peers_.find(id);
  if (found == peers_.end()) return paths;
  for (const auto number : found->second.connections[static_cast<std::size_t>(Lane::bulk)])
    if (auto path = connections_.at(number).end->path(number)) {
      path->connection = number;
      paths.push_back(std::move(*path));
    }
  return paths;
}

void ZmqWire::widen(GatewayId id, std::uint32_t connections) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  auto& peer = found->second;
  if (std::exchange(peer.bulk_width, connections) != connections)
    for (const auto number : peer.on(Lane::bulk))
      connections_.at(number).end->share(number, connections);
  if (!peer.control_dialer) return;
  const auto wanted = std::min(connections, peer.bulk_width_max);
  while (peer.bulk_dialers.size() < wanted)
    peer.bulk_dialers.push_back(std::make_unique<TlsDialer>(
        *lane_, *this, *peer.unreachable, *names_, peer.entry, peer.bulk_address));
  if (receiver_ != nullptr)
    for (std::size_t i = 0; i < wanted; ++i) peer.bulk_dialers[i]->start();
}

void ZmqWire::limit_width(GatewayId id, std::uint32_t most) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  auto& peer = found->second;
  peer.bulk_width_max = std::clamp(most, 1u, options_.bulk_connections_max);
  for (std::size_t i = peer.bulk_width_max; i < peer.bulk_dialers.size(); ++i)
    peer.bulk_dialers[i]->rest();
}

void ZmqWire::pace(GatewayId peer, ConnectionId id, std::optional<double> bytes_per_second) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || found->second.peer != peer || found->second.dropped) return;
  found->second.end->pace(id, bytes_per_second);
}

void ZmqWire::limit_bulk(double bytes_per_second) {
  lane_->limit(bytes_per_second);
  for (auto& [id, connection] : connections_)
    if (connection.lane == Lane::bulk && !connection.dropped) {
      connection.end->share(id, peers_.at(connection.peer).bulk_width);
      connection.end->limit_changed(id);
    }
}

void ZmqWire::opened(ConnectionId id, GatewayId peer_id, Lane lane, LaneEnd& end,
                     std::shared_ptr<const LaneMeter> meter) {
  auto& peer = peers_.at(peer_id);
  connections_.emplace(id, Connection{peer_id, lane, &end, std::move(meter)});
  auto& connections = peer.on(lane);
  connections.push_back(id);
  const bool dialing = &end != control_listener_.get() && &end != bulk_listener_.get();
  if (const auto left_out = peer.ups_logged.due(loop_.now()))
    log_.info("wire_up", {peer.entry.name},
              {{"lane", to_string(lane)},
               {"connection", id},
               {"dialed", dialing},
               {"left_out", *left_out}});
  // Of the bulk lane the listener lets no more in.
  if (lane == Lane::control && connections.size() > 1 + kSpareConnectionsMax)
    drop(connections.front(), "too many");
  if (lane == Lane::bulk) end.share(id, peer.bulk_width);
  // The peer is there again.
  if (lane == Lane::control)
    for (const auto& dialer : peer.bulk_dialers) dialer->hurry();
  receiver_->on_up(peer_id, lane, id);
}

void ZmqWire::closed(ConnectionId id, std::string_view reason) {
  const auto found = connections_.find(id);
  ISTHMUS_ASSERT(found != connections_.end());
  const auto connection = found->second;
  connections_.erase(found);
  auto& peer = peers_.at(connection.peer);
  std::erase(peer.on(connection.lane), id);
  const auto lane = static_cast<std::size_t>(connection.lane);
  peer.bytes_sent[lane] += connection.meter->sent;
  peer.bytes_received[lane] += connection.meter->received;
  if (const auto left_out = peer.downs_logged.due(loop_.now()))
    log_.info("wire_down", {peer.entry.name},
              {{"lane", to_string(connection.lane)},
               {"connection", id},
               {"reason", reason},
               {"left_out", *left_out}});
  receiver_->on_down(connection.peer, connection.lane, id);
}

std::optional<Nanoseconds> ZmqWire::bulk_silence(GatewayId peer) const {
  std::optional<Nanoseconds> least;
  for (const auto& path : bulk_paths(peer))
    if (path.tcp.silence && (!least || *path.tcp.silence < *least)) least = path.tcp.silence;
  return least;
}

void ZmqWire::received(ConnectionId id, const SharedBytes& message) {
  const auto& connection = connections_.at(id);
  if (connection.dropped) return;
  receiver_->on_message(connection.peer, connection.lane, id, message);
}

void ZmqWire::writable(ConnectionId id) {
  const auto connection = connections_.at(id);
  if (!connection.dropped) receiver_->on_writable(connection.peer, connection.lane, id);
}

}  // namespace

Result<std::unique_ptr<Wire>> make_zmq_wire(Loop& loop, EventLog& log,
                                            const ZmqWireOptions& options) {
  auto wire = std::make_unique<ZmqWire>(loop, log, options);
  ISTHMUS_CHECK(wire->open());
  return wire;
}

}  // namespace isthmus::inter

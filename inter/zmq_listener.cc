#include "inter/zmq_listener.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "inter/zap_handler.h"

namespace isthmus::inter {

namespace {

// Not HANDSHAKE_FAILED_PROTOCOL, which libzmq also reports when a box of an established connection
// does not open: reporting it overwrites errno, whereupon the connection is not ended but stands
// still (4.3.4).
constexpr int kListenerEvents =
    ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_ACCEPT_FAILED;

constexpr Nanoseconds kEndedRemembered = 10 * kSecond;

// Of all connections on which nobody has greeted; whoever has most of it goes first.
constexpr std::uint64_t kUngreetedBytesMax = 64 << 20;

// Strangers wait here for their handshake; listed gateways must not be turned away meanwhile.
constexpr int kBacklog = 1024;

}  // namespace

Result<std::unique_ptr<ZmqListener>> ZmqListener::make(
    Loop& loop, EventLog& log, const ZmqContext& context, const ZmqWireOptions& options,
    LaneEvents& events, CongestionControl& congestion, ZapHandler& zap, const TcpAddress& address) {
  std::unique_ptr<ZmqListener> made(new ZmqListener(loop, log, options, events, congestion, zap));
  auto& socket = made->socket_;
  ISTHMUS_TRY(socket, ZmqSocket::open(context, ZMQ_ROUTER));
  ISTHMUS_CHECK(require_curve_server(socket, options.identity->curve_secret()));
  ISTHMUS_CHECK(set_control_options(socket, options));
  ISTHMUS_CHECK(socket.set(ZMQ_ROUTER_MANDATORY, 1));
  ISTHMUS_CHECK(socket.set(ZMQ_ROUTER_HANDOVER, 0));
  ISTHMUS_CHECK(socket.set(ZMQ_BACKLOG, kBacklog));
  ISTHMUS_CHECK(socket.set(ZMQ_IPV6, address.is_ipv6() || address.host == "*" ? 1 : 0));
  ISTHMUS_TRY(made->monitor_, SocketMonitor::make(context, socket, kListenerEvents));
  ISTHMUS_CHECK(socket.bind(address.endpoint()));
  return made;
}

ZmqListener::~ZmqListener() {
  socket_watch_.reset();
  monitor_watch_.reset();
  monitor_.close();
  socket_.close();
}

void ZmqListener::start() {
  monitor_watch_ =
      std::make_unique<SocketWatch>(loop_, monitor_.socket(), [this] { take_events(); });
  socket_watch_ = std::make_unique<SocketWatch>(loop_, socket_, [this] { take_messages(); });
  tasks_.start_timer(options_.heartbeat_interval, [this] { beat(); });
}

void ZmqListener::beat() {
  const auto now = loop_.now();
  auto next = next_beat(now, options_.heartbeat_interval) - now;
  std::vector<ConnectionId> silent;
  for (auto& [id, connection] : connections_) {
    if (!connection.ending.empty()) continue;
    const auto patience =
        connection.pulse.patience(now, connection.socket, options_, events_, connection.peer);
    if (patience == 0) {
      silent.push_back(id);
      continue;
    }
    next = std::min(next, patience);
    // Where a message waits for room, that is a sign of life as good.
    ZmqMessage routing_id(connection.routing_id);
    if (!connection.overflow.full()) LanePulse::send(socket_, &routing_id);
  }
  for (const auto id : silent) drop(id, "silence");
  socket_watch_->kick();
  tasks_.start_timer(next, [this] { beat(); });
}

// While there are connections.
void ZmqListener::look() {
  std::vector<ConnectionId> endless;
  for (auto& [id, connection] : connections_)
    if (connection.ending.empty() && connection.unfinished.is_too_long(connection.socket))
      endless.push_back(id);
  for (const auto id : endless) end_violating(connections_.at(id), "a message without end");
  look_at_accepted();
  if (!connections_.empty() || !accepted_.empty())
    looks_.start_timer(UnfinishedMessage::kLookEvery, [this] { look(); });
}

// Nobody fills memory with first messages that do not end: who dials greets within dial_timeout, or
// has given up; and all who are to greet have few bytes together.
void ZmqListener::look_at_accepted() {
  std::uint64_t all = 0;
  std::vector<std::pair<std::uint64_t, int>> filled;  // bytes, descriptor
  for (auto at = accepted_.begin(); at != accepted_.end();) {
    auto& [descriptor, accepted] = *at++;
    if (accepted.unfinished.is_too_long(accepted.socket)) {
      shut_accepted(descriptor, "a message without end");
    } else if (loop_.now() - accepted.since > options_.dial_timeout) {
      shut_accepted(descriptor, "it did not greet in time");
    } else {
      all += accepted.unfinished.bytes();
      filled.emplace_back(accepted.unfinished.bytes(), descriptor);
    }
  }
  std::ranges::sort(filled, std::greater());
  for (const auto& [bytes, descriptor] : filled) {
    if (all <= kUngreetedBytesMax) break;
    all -= bytes;
    shut_accepted(descriptor, "many messages without end");
  }
}

void ZmqListener::shut_accepted(int descriptor, std::string_view why) {
  const auto accepted = accepted_.find(descriptor);
  if (accepted->second.socket.is_open()) log_stranger(why);
  shut_down(accepted->second.socket);
  accepted_.erase(accepted);
}

void ZmqListener::take_messages() {
  int taken = 0;
  while (taken < Inbox::kTakenMax && take_message()) ++taken;
  inbox_.give_to(events_);
  flush_overflows();
  if (!inbox_.empty()) return socket_watch_->kick();
  // Once the socket is empty, what an ended connection sent before has been delivered.
  if (taken < Inbox::kTakenMax) end_finished();
}

bool ZmqListener::take_message() {
  ZmqMessage routing_id;
  ZmqMessage payload;
  if (!socket_.receive(routing_id)) return false;
  if (!routing_id.more() || !socket_.receive(payload)) return true;
  int parts = 1;
  bool only_empty = payload.bytes().empty();
  for (bool more = payload.more(); more; ++parts) {
    ZmqMessage part;
    if (!socket_.receive(part)) break;
    only_empty = only_empty && part.bytes().empty();
    more = part.more();
  }
  auto* const connection = connection_of(std::string(routing_id.text()), payload);
  if (connection == nullptr || !connection->ending.empty()) return true;
  connection->pulse.heard(loop_.now());
  connection->unfinished.ended();
  if (parts == 2 && only_empty) return true;  // a heartbeat
  if (parts > 1 || payload.bytes().size() > kControlMessageBytesMax) {
    end_violating(*connection, "a message that no gateway sends");
    return true;
  }
  connection->meter->received += zmq_wire_bytes(payload.bytes().size());
  if (!inbox_.put(connection->id, std::move(payload)))
    end_violating(*connection, "more at once than a gateway sends");
  return true;
}

void ZmqListener::end_violating(const Connection& connection, std::string_view what) {
  if (const auto unlogged = violations_.due(loop_.now()))
    log_.alarm(
        "wire_violation", {options_.name_of(connection.peer)},
        {{"lane", to_string(Lane::control)}, {"what", what}, {"more_since_last", *unlogged}});
  inbox_.forget(connection.id);
  drop(connection.id, "violation");
}

ZmqListener::Connection* ZmqListener::connection_of(const std::string& routing_id,
                                                    const ZmqMessage& payload) {
  if (const auto known = by_routing_id_.find(routing_id); known != by_routing_id_.end())
    return &connections_.at(known->second);
  if (ended_.contains(routing_id)) return nullptr;
  const auto user_id = payload.property("User-Id");
  const auto peer = gateway_of_user_id(user_id);
  if (!peer || !events_.is_peer(*peer)) {
    refuse(payload, user_id, "not a gateway of the roster");
    return nullptr;
  }
  if (routing_id.empty() || routing_id[0] != '\0') {
    refuse(payload, user_id, "it chose a routing id");
    return nullptr;
  }
  const auto socket = tcp_socket_of(payload);
  if (!socket) return nullptr;  // it has ended already
  // An older connection with this descriptor has ended; its end must not be taken for this one's.
  take_events();
  end_all_on(socket.descriptor());
  accepted_.erase(socket.descriptor());
  Connection connection;
  connection.id = events_.next_connection();
  connection.peer = *peer;
  connection.routing_id = routing_id;
  connection.socket = socket;
  congestion_.ask(socket.descriptor());
  congestion_.note(socket.descriptor());
  connection.meter = std::make_shared<LaneMeter>();
  connection.meter->sent = kZmqHandshakeBytesListening;
  connection.meter->received = kZmqHandshakeBytesDialing;
  const auto id = connection.id;
  auto* const added = &connections_.emplace(id, std::move(connection)).first->second;
  by_routing_id_.emplace(routing_id, id);
  events_.opened(id, *peer, Lane::control, *this, added->meter);
  return added;
}

void ZmqListener::refuse(const ZmqMessage& payload, std::string_view peer,
                         std::string_view reason) {
  shut_down(tcp_socket_of(payload));
  if (const auto unlogged = refused_peers_.due(loop_.now()))
    log_.alarm("wire_peer_refused", {peer},
               {{"lane", to_string(Lane::control)},
                {"address", payload.property("Peer-Address")},
                {"reason", reason},
                {"more_since_last", *unlogged}});
}

void ZmqListener::take_events() {
  while (const auto event = monitor_.next()) {
    const int descriptor = static_cast<int>(event->value);
    if (event->event == ZMQ_EVENT_ACCEPTED) {
      const bool first = connections_.empty() && accepted_.empty();
      accepted_[descriptor] = {LaneSocket(descriptor), loop_.now(), {}};
      if (first) look();
    } else if (event->event == ZMQ_EVENT_DISCONNECTED) {
      accepted_.erase(descriptor);
      const bool known = end_all_on(descriptor);
      const bool by_us = shut_down_.erase(descriptor) > 0;
      if (known || by_us) continue;
      if (own_ends_ > 0)
        --own_ends_;
      else if (!zap_.take_refused())
        log_stranger("its handshake failed, or it said nothing");
    } else {
      log_stranger("not accepted: out of descriptors?");
    }
  }
}

void ZmqListener::log_stranger(std::string_view what) {
  if (const auto unlogged = strangers_.due(loop_.now()))
    log_.warning(
        "wire_stranger", {},
        {{"lane", to_string(Lane::control)}, {"what", what}, {"more_since_last", *unlogged}});
}

bool ZmqListener::end_all_on(int descriptor) {
  bool any = false;
  for (auto& [id, connection] : connections_) {
    if (connection.socket.descriptor() != descriptor) continue;
    end_soon(connection, "disconnected");
    any = true;
  }
  return any;
}

Result<void> ZmqListener::send(ConnectionId id, WireMessage message) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || !found->second.ending.empty())
    return Error{ErrorCode::unavailable, "the connection has ended"};
  auto& connection = found->second;
  if (connection.overflow.full()) {
    connection.overflow.refuse();
    return Error{ErrorCode::busy,
                 fmt::format("the control lane to {} is full", options_.name_of(connection.peer))};
  }
  const auto bytes = zmq_wire_bytes(message.size());
  ZmqMessage payload(std::move(message).whole());
  ZmqMessage routing_id(connection.routing_id);
  const int failed = socket_.send(routing_id, true);
  socket_watch_->kick();
  if (failed == EAGAIN) {
    connection.meter->sent += bytes;
    connection.overflow.put(std::move(payload));
    overflowing_.push_back(id);
    return {};
  }
  if (failed != 0) {
    end_soon(connection, "no longer reachable");
    return Error{ErrorCode::unavailable, "the connection has ended"};
  }
  connection.meter->sent += bytes;
  // After its routing id a message is always taken.
  socket_.send(payload);
  return {};
}

void ZmqListener::flush_overflows() {
  std::vector<ConnectionId> writable;
  std::erase_if(overflowing_, [&](ConnectionId id) {
    const auto found = connections_.find(id);
    if (found == connections_.end() || !found->second.ending.empty()) return true;
    auto& connection = found->second;
    ZmqMessage routing_id(connection.routing_id);
    const int failed = socket_.send(routing_id, true);
    if (failed == EAGAIN) return false;
    if (failed != 0) {
      end_soon(connection, "no longer reachable");
      return true;
    }
    socket_.send(connection.overflow.message());
    connection.overflow.clear();
    if (connection.overflow.take_refused()) writable.push_back(id);
    return true;
  });
  for (const auto id : writable) events_.writable(id);
}

void ZmqListener::drop(ConnectionId id, std::string_view reason) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || !found->second.ending.empty()) return;
  shut_down(found->second.socket);
  end_soon(found->second, reason);
  tasks_.post([this, id] { forget(id); });
}

void ZmqListener::end_soon(Connection& connection, std::string_view reason) {
  if (!connection.ending.empty()) return;
  connection.ending = reason;
  ending_.push_back(connection.id);
  socket_watch_->kick();
}

void ZmqListener::end_finished() {
  for (const auto id : std::exchange(ending_, {})) forget(id);
}

void ZmqListener::forget(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const auto connection = std::move(found->second);
  connections_.erase(found);
  inbox_.forget(id);
  by_routing_id_.erase(connection.routing_id);
  const auto now = loop_.now();
  ended_[connection.routing_id] = now;
  ended_order_.push_back(connection.routing_id);
  while (!ended_order_.empty() && now - ended_[ended_order_.front()] > kEndedRemembered) {
    ended_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
  events_.closed(id, connection.ending);
}

LaneSocket ZmqListener::tcp_socket_of(const ZmqMessage& payload) {
  const LaneSocket socket(payload.descriptor());
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (!socket ||
      ::getpeername(socket.descriptor(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return {};
  char host[NI_MAXHOST] = "";
  ::getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof host, nullptr, 0,
                NI_NUMERICHOST);
  if (payload.property("Peer-Address") != host) return {};  // the number is somebody else's by now
  return socket;
}

void ZmqListener::shut_down(const LaneSocket& socket) {
  if (!socket.is_open()) return;
  shut_down_.insert(socket.descriptor());
  // libzmq's I/O thread sees the end and closes. Should it have closed and another connection have
  // got the number since the check, that one is dialed again by its owner.
  ::shutdown(socket.descriptor(), SHUT_RDWR);
}

}  // namespace isthmus::inter

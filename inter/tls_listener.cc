#include "inter/tls_listener.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <chrono>

namespace isthmus::inter {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

// Strangers wait here until they are accepted; listed gateways must not be turned away meanwhile.
constexpr int kTlsBacklog = 1024;

// After descriptors or memory ran out.
constexpr std::chrono::milliseconds kPause(100);

Error listen_error(const TcpAddress& address, const boost::system::error_code& failed) {
  const auto code = failed == asio::error::address_in_use  ? ErrorCode::in_use
                    : failed.value() == EADDRNOTAVAIL      ? ErrorCode::invalid_argument
                    : failed == asio::error::access_denied ? ErrorCode::permission
                                                           : ErrorCode::io;
  return {code, fmt::format("cannot listen on {}: {}", address.endpoint(), failed.message())};
}

void erase(std::deque<std::shared_ptr<TlsConnection>>& from, const TlsConnection& connection) {
  std::erase_if(from, [&](const auto& other) { return other.get() == &connection; });
}

}  // namespace

Result<std::unique_ptr<TlsListener>> TlsListener::make(TlsLane& lane, LaneEvents& events,
                                                       const TcpAddress& address) {
  std::unique_ptr<TlsListener> made(new TlsListener(lane, events));
  ISTHMUS_CHECK(made->listen(address));
  return made;
}

Result<void> TlsListener::listen(const TcpAddress& address) {
  ISTHMUS_TRY(const auto endpoint, tcp_endpoint(address));
  boost::system::error_code failed;
  const auto or_fail = [&]() -> Result<void> {
    if (failed) return listen_error(address, failed);
    return {};
  };
  acceptor_.open(endpoint.protocol(), failed);
  ISTHMUS_CHECK(or_fail());
  acceptor_.set_option(tcp::acceptor::reuse_address(true), failed);
  if (endpoint.address().is_v6() && !failed) acceptor_.set_option(asio::ip::v6_only(false), failed);
  if (!failed) acceptor_.bind(endpoint, failed);
  ISTHMUS_CHECK(or_fail());
  lane_.set_up_unconnected(acceptor_.native_handle());
  acceptor_.listen(kTlsBacklog, failed);
  ISTHMUS_CHECK(or_fail());
  asio::post(io_, [this] { accept_next(); });
  return {};
}

void TlsListener::accept_next() {
  auto& io = lane_.next_thread();
  acceptor_.async_accept(io, [this, &io](boost::system::error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (!error) {
      accepted(std::move(socket), io);
      return accept_next();
    }
    // Whoever waits stays in the backlog; accepting again at once would fail again at once.
    log_stranger("not accepted: " + error.message());
    {
      const std::lock_guard lock(mutex_);
      make_room();
    }
    pause_.expires_after(kPause);
    pause_.async_wait([this](boost::system::error_code stopped) {
      if (!stopped) accept_next();
    });
  });
}

void TlsListener::accepted(tcp::socket socket, asio::io_context& io) {
  const auto connection = std::make_shared<TlsConnection>(lane_, io, static_cast<TlsUser&>(*this),
                                                          static_cast<TlsGate&>(*this));
  {
    const std::lock_guard lock(mutex_);
    if (strangers_.size() >= kStrangersMax) make_room();
    strangers_.push_back(connection);
  }
  connection->accept(std::move(socket));
}

// Under the mutex. Who is in the middle of a handshake may be a gateway.
void TlsListener::make_room() {
  if (strangers_.empty()) return;
  auto chosen = std::ranges::find_if(strangers_, [](const auto& c) { return c->silent(); });
  if (chosen == strangers_.end()) chosen = strangers_.begin();
  (*chosen)->end(ErrorCode::busy, "others came that nobody knows either");
  strangers_.erase(chosen);
}

// ---- Who gets in.

void TlsListener::list(const security::PublicKey& site, GatewayId gateway) {
  const std::lock_guard lock(mutex_);
  listed_[site].insert(gateway);
}

void TlsListener::list_for_check(const security::PublicKey& key) {
  const std::lock_guard lock(mutex_);
  check_key_ = key;
}

void TlsListener::unlist_check() {
  const std::lock_guard lock(mutex_);
  check_key_.reset();
}

bool TlsListener::admits(const security::PublicKey& key) {
  const std::lock_guard lock(mutex_);
  return listed_.contains(key) || key == check_key_;
}

bool TlsListener::admits(const std::shared_ptr<TlsConnection>& connection,
                         const security::PublicKey& key, GatewayId id) {
  const std::lock_guard lock(mutex_);
  const auto site = listed_.find(key);
  if (site == listed_.end() || !site->second.contains(id)) return false;
  erase(strangers_, *connection);
  auto& others = admitted_[id];
  others.push_back(connection);
  if (others.size() > lane_.options().bulk_connections_max + kSpareConnectionsMax) {
    const auto chosen = one_too_many(others);
    (*chosen)->end(ErrorCode::busy, "too many");
    others.erase(chosen);
  }
  return true;
}

// The newest is the last.
TlsListener::Connections::iterator TlsListener::one_too_many(Connections& of_a_gateway) const {
  auto chosen = std::prev(of_a_gateway.end());
  auto longest = lane_.options().silent_after;
  for (auto other = of_a_gateway.begin(); other != std::prev(of_a_gateway.end()); ++other) {
    const auto path = (*other)->path();
    if (!path) return other;  // it has ended
    if (path->tcp.unheard < longest) continue;
    chosen = other;
    longest = path->tcp.unheard;
  }
  return chosen;
}

void TlsListener::gone(TlsConnection& connection, const Error& why, bool was_up) {
  std::optional<std::uint64_t> unlogged;
  {
    const std::lock_guard lock(mutex_);
    erase(strangers_, connection);
    if (was_up) return erase(admitted_[connection.peer()], connection);
    if (quiet_) return;
    if (why.code == ErrorCode::unauthenticated)
      unlogged = keys_logged_.due(lane_.loop().now());
    else if (why.code == ErrorCode::mismatch)
      unlogged = peers_logged_.due(lane_.loop().now());
  }
  if (why.code != ErrorCode::unauthenticated && why.code != ErrorCode::mismatch)
    return log_stranger(why.text());
  if (!unlogged) return;
  if (why.code == ErrorCode::unauthenticated)
    lane_.log().warning("wire_key_refused", {},
                        {{"lane", to_string(Lane::bulk)},
                         {"address", connection.address()},
                         {"reason", why.text()},
                         {"more_since_last", *unlogged}});
  else
    lane_.log().alarm("wire_peer_refused", {lane_.options().name_of(connection.peer())},
                      {{"lane", to_string(Lane::bulk)},
                       {"address", connection.address()},
                       {"reason", why.text()},
                       {"more_since_last", *unlogged}});
}

void TlsListener::log_stranger(std::string_view what) {
  std::optional<std::uint64_t> unlogged;
  {
    const std::lock_guard lock(mutex_);
    unlogged = strangers_logged_.due(lane_.loop().now());
  }
  if (unlogged)
    lane_.log().warning(
        "wire_stranger", {},
        {{"lane", to_string(Lane::bulk)}, {"what", what}, {"more_since_last", *unlogged}});
}

// ---- From the loop.

void TlsListener::up(const std::shared_ptr<TlsConnection>& connection) {
  connection->number(events_.next_connection());
  connections_.emplace(connection->id(), connection);
  events_.opened(connection->id(), connection->peer(), Lane::bulk, *this, connection->meter());
  connection->start_reading();
}

void TlsListener::received(TlsConnection& connection, const SharedBytes& message) {
  events_.received(connection.id(), message);
}

void TlsListener::writable(TlsConnection& connection) { events_.writable(connection.id()); }

void TlsListener::ended(TlsConnection& connection, const Error& why) {
  connections_.erase(connection.id());
  events_.closed(connection.id(), why.text());
}

Result<void> TlsListener::send(ConnectionId id, WireMessage message) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return Error{ErrorCode::unavailable, "the connection has ended"};
  return found->second->send(std::move(message));
}

std::optional<BulkPath> TlsListener::path(ConnectionId id) const {
  const auto found = connections_.find(id);
  return found == connections_.end() ? std::nullopt : found->second->path();
}

void TlsListener::share(ConnectionId id, std::uint32_t connections) {
  const auto found = connections_.find(id);
  if (found != connections_.end()) found->second->share(connections);
}

void TlsListener::limit_changed(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found != connections_.end()) found->second->limit_changed();
}

void TlsListener::pace(ConnectionId id, std::optional<double> bytes_per_second) {
  const auto found = connections_.find(id);
  if (found != connections_.end()) found->second->pace(bytes_per_second);
}

void TlsListener::drop(ConnectionId id, std::string_view reason) {
  const auto found = connections_.find(id);
  if (found != connections_.end()) found->second->end(ErrorCode::cancelled, std::string(reason));
}

}  // namespace isthmus::inter

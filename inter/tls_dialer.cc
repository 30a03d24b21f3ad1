#include "inter/tls_dialer.h"

#include <fmt/format.h>

#include "base/assert.h"

namespace isthmus::inter {

TlsDialer::TlsDialer(TlsLane& lane, LaneEvents& events, UnreachableLog& unreachable,
                     HostNames& names, const ZmqPeer& peer, TcpAddress address)
    : lane_(lane),
      loop_(lane.loop()),
      events_(events),
      unreachable_(unreachable),
      peer_(peer),
      address_(std::move(address)),
      delay_(lane.options().redial_delay_min, lane.options().redial_delay_max),
      look_up_(lane.loop(), names, address_.host),
      tasks_(lane.loop()) {}

void TlsDialer::start() {
  if (std::exchange(started_, true)) return;
  // One that still ends is dialed again after that.
  if (connection_ == nullptr) tasks_.start_timer(0, [this] { dial(); });
}

void TlsDialer::hurry() {
  if (started_ && connection_ == nullptr) tasks_.start_timer(0, [this] { dial(); });
}

void TlsDialer::rest() {
  if (!std::exchange(started_, false)) return;
  tasks_.stop_timer();
  look_up_.give_up();
  if (connection_ != nullptr && !std::exchange(dropped_, true))
    connection_->end(ErrorCode::cancelled, "the peer takes no more");
}

void TlsDialer::dial() {
  delay_.looking_up(loop_.now());
  tasks_.start_timer(lane_.options().dial_timeout, [this] {
    end({ErrorCode::timeout, "no address in time"});
  });
  look_up_.next([this](Result<std::string> host) {
    if (host)
      connect(*host);
    else
      end(host.error());
  });
}

void TlsDialer::connect(const std::string& numeric_host) {
  tasks_.stop_timer();
  const auto endpoint = tcp_endpoint({numeric_host, address_.port});
  if (!endpoint) return end(endpoint.error());
  connection_ = std::make_shared<TlsConnection>(
      lane_, lane_.next_thread(), static_cast<TlsUser&>(*this), static_cast<TlsGate&>(*this));
  connection_->dial(*endpoint, delay_.dialing(loop_.now(), lane_.options().connect_timeout));
}

void TlsDialer::up(const std::shared_ptr<TlsConnection>& connection) {
  ISTHMUS_ASSERT(connection == connection_ && !up_);
  up_ = true;
  delay_.connected(*connection->connected_at());
  delay_.up(loop_.now());
  look_up_.reached();
  unreachable_.up(Lane::bulk, loop_.now());
  connection->number(events_.next_connection());
  events_.opened(connection->id(), peer_.id, Lane::bulk, *this, connection->meter());
  connection->start_reading();
}

void TlsDialer::received(TlsConnection& connection, const SharedBytes& message) {
  events_.received(connection.id(), message);
}

void TlsDialer::writable(TlsConnection& connection) { events_.writable(connection.id()); }

void TlsDialer::ended(TlsConnection& connection, const Error& why) {
  ISTHMUS_ASSERT(&connection == connection_.get());
  end(why);
}

void TlsDialer::end(const Error& why) {
  tasks_.stop_timer();
  look_up_.give_up();
  const bool was_up = std::exchange(up_, false);
  dropped_ = false;
  const auto connection = std::exchange(connection_, nullptr);
  if (was_up)
    unreachable_.down(Lane::bulk, loop_.now());
  else if (started_)
    unreachable_.failed(Lane::bulk, loop_.now(), address_.endpoint(), why.text());
  if (!was_up && connection != nullptr && connection->connected_at())
    delay_.connected(*connection->connected_at());
  const auto delay = delay_.ended(loop_.now(), was_up);
  if (started_) tasks_.start_timer(delay, [this] { dial(); });
  if (was_up) events_.closed(connection->id(), why.text());
}

Result<void> TlsDialer::send(ConnectionId connection, WireMessage message) {
  if (!up_ || dropped_ || connection != connection_->id())
    return Error{ErrorCode::unavailable, fmt::format("no such connection to {}", peer_.name)};
  return connection_->send(std::move(message));
}

std::optional<BulkPath> TlsDialer::path(ConnectionId connection) const {
  if (!up_ || connection != connection_->id()) return std::nullopt;
  return connection_->path();
}

void TlsDialer::share(ConnectionId connection, std::uint32_t connections) {
  if (up_ && connection == connection_->id()) connection_->share(connections);
}

void TlsDialer::limit_changed(ConnectionId connection) {
  if (up_ && connection == connection_->id()) connection_->limit_changed();
}

void TlsDialer::pace(ConnectionId connection, std::optional<double> bytes_per_second) {
  if (up_ && connection == connection_->id()) connection_->pace(bytes_per_second);
}

void TlsDialer::drop(ConnectionId connection, std::string_view reason) {
  if (!up_ || dropped_ || connection != connection_->id()) return;
  dropped_ = true;
  connection_->end(ErrorCode::cancelled, std::string(reason));
}

}  // namespace isthmus::inter

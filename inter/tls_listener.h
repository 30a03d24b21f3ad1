// TlsListener: the bulk lane's listening socket, with all connections that gateways made to it, and
// whoever else came. Internal to the wire (inter/zmq_wire.h).
//
// Strangers: kStrangersMax connections at a time that have not proven a listed key; when one more
// comes, the oldest that has said nothing goes, else the oldest; each has handshake_timeout.
//
// A gateway: bulk_connections_max and kSpareConnectionsMax; when one more comes, the one that was
// silent for longest goes, if that is long (silent_after), else the new one: what is on its way on
// those that live would have to go again.
#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>

#include "inter/log_pace.h"
#include "inter/tls_connection.h"

namespace isthmus::inter {

class TlsListener final : public LaneEnd, private TlsUser, private TlsGate {
 public:
  static constexpr std::size_t kStrangersMax = 256;

  // Listens and shakes hands; nothing is told before the lane's mailbox is started. Errors: in_use,
  // invalid_argument, permission, io.
  static Result<std::unique_ptr<TlsListener>> make(TlsLane& lane, LaneEvents& events,
                                                   const TcpAddress& address);

  // From any thread; for handshakes that come after.
  void list(const security::PublicKey& site, GatewayId gateway);
  // A key that gets through the handshake and no further: for whoever tries the socket.
  void list_for_check(const security::PublicKey& key);
  void unlist_check();
  // While this process tries its own socket, refusals are no news.
  void log_refusals(bool on) { quiet_ = !on; }

  Result<void> send(ConnectionId connection, WireMessage message) override;
  void drop(ConnectionId connection, std::string_view reason) override;
  std::optional<BulkPath> path(ConnectionId connection) const override;
  void share(ConnectionId connection, std::uint32_t connections) override;
  void limit_changed(ConnectionId connection) override;
  void pace(ConnectionId connection, std::optional<double> bytes_per_second) override;

 private:
  TlsListener(TlsLane& lane, LaneEvents& events)
      : lane_(lane), events_(events), io_(lane.next_thread()), acceptor_(io_), pause_(io_) {}

  using Connections = std::deque<std::shared_ptr<TlsConnection>>;

  Result<void> listen(const TcpAddress& address);
  void accept_next();
  void accepted(boost::asio::ip::tcp::socket socket, boost::asio::io_context& io);
  void make_room();
  Connections::iterator one_too_many(Connections& of_a_gateway) const;
  void log_stranger(std::string_view what);

  void up(const std::shared_ptr<TlsConnection>& connection) override;
  void received(TlsConnection& connection, const SharedBytes& message) override;
  void writable(TlsConnection& connection) override;
  void ended(TlsConnection& connection, const Error& why) override;

  bool admits(const security::PublicKey& key) override;
  bool admits(const std::shared_ptr<TlsConnection>& connection, const security::PublicKey& key,
              GatewayId id) override;
  void gone(TlsConnection& connection, const Error& why, bool was_up) override;

  TlsLane& lane_;
  LaneEvents& events_;
  boost::asio::io_context& io_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer pause_;
  std::atomic<bool> quiet_ = false;

  std::mutex mutex_;  // guards what follows, up to the next blank line
  std::map<security::PublicKey, std::set<GatewayId>> listed_;
  std::optional<security::PublicKey> check_key_;
  Connections strangers_;                      // oldest first
  std::map<GatewayId, Connections> admitted_;  // oldest first
  LogPace strangers_logged_, peers_logged_;
  LogPace keys_logged_{kRefusedKeysApart, kRefusedKeysAtOnce};

  // The loop's.
  std::unordered_map<ConnectionId, std::shared_ptr<TlsConnection>> connections_;
};

}  // namespace isthmus::inter

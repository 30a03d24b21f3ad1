// TlsDialer: the bulk lane to one peer that this gateway dials. Keeps exactly one attempt or
// connection going while started, as inter/zmq_dialer.h does on the control lane. Internal to the
// wire.
#pragma once

#include <memory>
#include <string>

#include "base/event_log.h"
#include "inter/host_look_up.h"
#include "inter/owned_tasks.h"
#include "inter/redial_delay.h"
#include "inter/tcp_address.h"
#include "inter/tls_connection.h"
#include "inter/unreachable_log.h"

namespace isthmus::inter {

class TlsDialer final : public LaneEnd, private TlsUser, private TlsGate {
 public:
  // `peer` (which has an address) outlives the dialer; the lane is stopped before that goes.
  TlsDialer(TlsLane& lane, LaneEvents& events, UnreachableLog& unreachable, HostNames& names,
            const ZmqPeer& peer, TcpAddress address);

  void start();  // nothing if it has started
  // What waits for the next attempt does not wait any longer.
  void hurry();
  // Ends what there is, and makes no more until the next start().
  void rest();

  Result<void> send(ConnectionId connection, WireMessage message) override;
  void drop(ConnectionId connection, std::string_view reason) override;
  std::optional<BulkPath> path(ConnectionId connection) const override;
  void share(ConnectionId connection, std::uint32_t connections) override;
  void limit_changed(ConnectionId connection) override;
  void pace(ConnectionId connection, std::optional<double> bytes_per_second) override;

 private:
  void dial();
  void connect(const std::string& numeric_host);
  void end(const Error& why);

  void up(const std::shared_ptr<TlsConnection>& connection) override;
  void received(TlsConnection& connection, const SharedBytes& message) override;
  void writable(TlsConnection& connection) override;
  void ended(TlsConnection& connection, const Error& why) override;

  bool admits(const security::PublicKey& key) override { return key == peer_.identity; }
  bool admits(const std::shared_ptr<TlsConnection>&, const security::PublicKey&,
              GatewayId id) override {
    return id == peer_.id;
  }
  void gone(TlsConnection&, const Error&, bool) override {}

  TlsLane& lane_;
  Loop& loop_;
  LaneEvents& events_;
  UnreachableLog& unreachable_;
  const ZmqPeer& peer_;
  const TcpAddress address_;  // the host may be a name, looked up for every attempt

  std::shared_ptr<TlsConnection> connection_;  // the attempt too
  bool started_ = false;
  bool up_ = false;
  bool dropped_ = false;  // its end is on its way
  RedialDelay delay_;
  HostLookUp look_up_;
  OwnedTasks tasks_;  // its timer: the next attempt, or the end of a name's look-up
};

}  // namespace isthmus::inter

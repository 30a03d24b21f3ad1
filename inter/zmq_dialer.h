// ZmqDialer: one lane to one peer that this gateway dials. Keeps exactly one attempt or connection
// going while started, each with a fresh socket. Internal to the ZeroMQ wire.
//
//     stopped ──start──▶ dialing ──handshake──▶ up
//        ▲                │  ▲                  │
//        │             failed, or not up        │ ended, or dropped
//       stop           within dial_timeout      │
//        │                ▼  │ redial delay     │
//        └───────────── waiting ◀───────────────┘
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>

#include "base/event_log.h"
#include "inter/tcp_address.h"
#include "inter/zmq_lane.h"
#include "inter/zmq_watch.h"

namespace isthmus::inter {

class ZmqDialer final : public LaneEnd {
 public:
  // `options` and `peer` (which has an address) outlive the dialer.
  ZmqDialer(Loop& loop, EventLog& log, const ZmqContext& context, const ZmqWireOptions& options,
            LaneEvents& events, const ZmqPeer& peer, Lane lane, TcpAddress address);
  ~ZmqDialer() override;

  void start();  // once

  Result<void> send(ConnectionId connection, Bytes message) override;
  void drop(ConnectionId connection, std::string_view reason) override;

 private:
  void dial();
  void connect(const std::string& numeric_host);
  Result<void> open_socket(const TcpAddress& address);
  void take_events();
  void take_messages();
  void flush_overflow();
  void handshake_succeeded();
  void end(std::string_view reason);
  void close_socket();

  Loop& loop_;
  EventLog& log_;
  const ZmqContext& context_;
  const ZmqWireOptions& options_;
  LaneEvents& events_;
  const ZmqPeer& peer_;
  const Lane lane_;
  const TcpAddress address_;  // the host may be a name, looked up for every attempt

  ConnectionId connection_ = 0;  // 0: not up
  bool dropped_ = false;         // end() is on its way
  Nanoseconds dialed_at_ = 0;
  Nanoseconds up_at_ = 0;
  Nanoseconds redial_delay_;
  std::uint64_t attempts_ = 0;
  std::string logged_failure_;  // said once, until it changes
  ZmqSocket socket_;
  SocketMonitor monitor_;
  std::unique_ptr<SocketWatch> socket_watch_;
  std::unique_ptr<SocketWatch> monitor_watch_;
  Overflow overflow_;
  boost::asio::ip::tcp::resolver resolver_;
  OwnedTasks tasks_;  // its timer: the next attempt, or the end of this one's time
};

}  // namespace isthmus::inter

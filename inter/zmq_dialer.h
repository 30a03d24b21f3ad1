// ZmqDialer: the control lane to one peer that this gateway dials. Keeps exactly one attempt or
// connection going while started, each with a fresh socket. Internal to the wire.
//
//     start ──▶ dialing ──handshake──▶ up
//                │  ▲                  │
//             failed, or not up        │ ended, or dropped
//             within dial_timeout      │
//                ▼  │ redial delay     │
//               waiting ◀──────────────┘
#pragma once

#include <memory>
#include <string>

#include "base/event_log.h"
#include "inter/congestion_control.h"
#include "inter/host_look_up.h"
#include "inter/log_pace.h"
#include "inter/owned_tasks.h"
#include "inter/redial_delay.h"
#include "inter/tcp_address.h"
#include "inter/unreachable_log.h"
#include "inter/zmq_lane.h"
#include "inter/zmq_watch.h"

namespace isthmus::inter {

class ZmqDialer final : public LaneEnd {
 public:
  // `options` and `peer` (which has an address) outlive the dialer.
  ZmqDialer(Loop& loop, EventLog& log, const ZmqContext& context, const ZmqWireOptions& options,
            LaneEvents& events, CongestionControl& congestion, UnreachableLog& unreachable,
            HostNames& names, const ZmqPeer& peer, TcpAddress address);
  ~ZmqDialer() override;

  void start();  // once

  Result<void> send(ConnectionId connection, WireMessage message) override;
  void drop(ConnectionId connection, std::string_view reason) override;

 private:
  void dial();
  void connect(const std::string& numeric_host);
  Result<void> open_socket(const TcpAddress& address);
  void take_events();
  void take_messages();
  void flush_overflow();
  void handshake_succeeded();
  bool is_heartbeat(const ZmqMessage& first);
  void end_violating(std::string_view what);
  void beat();
  void look();
  void end(std::string_view reason);
  void close_socket();

  Loop& loop_;
  EventLog& log_;
  const ZmqContext& context_;
  const ZmqWireOptions& options_;
  LaneEvents& events_;
  CongestionControl& congestion_;
  UnreachableLog& unreachable_;
  const ZmqPeer& peer_;
  const TcpAddress address_;  // the host may be a name, looked up for every attempt

  ConnectionId connection_ = 0;  // 0: not up
  bool dropped_ = false;         // end() is on its way
  std::shared_ptr<LaneMeter> meter_;
  RedialDelay delay_;
  ZmqSocket socket_;
  SocketMonitor monitor_;
  LaneSocket tcp_;
  LanePulse pulse_;
  UnfinishedMessage unfinished_;
  LogPace violations_{kSecond, kViolationsAtOnce};
  std::unique_ptr<SocketWatch> socket_watch_;
  std::unique_ptr<SocketWatch> monitor_watch_;
  Overflow overflow_;
  Inbox inbox_;
  HostLookUp look_up_;
  OwnedTasks tasks_;  // its timer: the next attempt, the end of this one's time, or the next beat
  OwnedTasks looks_;  // its timer: the next look at what the peer has begun to say
};

}  // namespace isthmus::inter

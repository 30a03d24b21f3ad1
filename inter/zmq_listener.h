// ZmqListener: the control lane's listening socket, a ROUTER, with all connections that gateways
// made to it. Internal to the wire.
//
// A connection here is a routing id that libzmq made up, seen with the User-Id that the ZapHandler
// gave: nothing that a peer says of itself. libzmq cannot close one connection of a ROUTER, so this
// shuts down its TCP socket, found through the message it came with.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/event_log.h"
#include "inter/congestion_control.h"
#include "inter/log_pace.h"
#include "inter/owned_tasks.h"
#include "inter/tcp_address.h"
#include "inter/zap_handler.h"
#include "inter/zmq_lane.h"
#include "inter/zmq_watch.h"

namespace isthmus::inter {

class ZmqListener final : public LaneEnd {
 public:
  // Listens, but takes nothing in before start(). `options` outlive it.
  static Result<std::unique_ptr<ZmqListener>> make(Loop& loop, EventLog& log,
                                                   const ZmqContext& context,
                                                   const ZmqWireOptions& options,
                                                   LaneEvents& events,
                                                   CongestionControl& congestion, ZapHandler& zap,
                                                   const TcpAddress& address);
  ~ZmqListener() override;

  void start();
  // "tcp://host:port" in numbers: where it listens.
  Result<std::string> endpoint() { return socket_.last_endpoint(); }
  // So many connections that this process made to itself, on purpose, are still to end.
  void expect_ends(int connections) { own_ends_ += connections; }

  Result<void> send(ConnectionId connection, WireMessage message) override;
  void drop(ConnectionId connection, std::string_view reason) override;

 private:
  struct Connection {
    ConnectionId id = 0;
    GatewayId peer;
    std::string routing_id;
    LaneSocket socket;
    LanePulse pulse;
    UnfinishedMessage unfinished;
    Overflow overflow;
    std::shared_ptr<LaneMeter> meter;
    std::string ending;  // why, once closed() is on its way; "" while it lives
  };

  // Nobody has said anything whole on it yet.
  struct Accepted {
    LaneSocket socket;
    Nanoseconds since = 0;
    UnfinishedMessage unfinished;
  };

  ZmqListener(Loop& loop, EventLog& log, const ZmqWireOptions& options, LaneEvents& events,
              CongestionControl& congestion, ZapHandler& zap)
      : loop_(loop),
        log_(log),
        options_(options),
        events_(events),
        congestion_(congestion),
        zap_(zap),
        tasks_(loop),
        looks_(loop) {}

  void look_at_accepted();
  void shut_accepted(int descriptor, std::string_view why);
  void take_messages();
  bool take_message();
  void take_events();
  void beat();
  void look();
  Connection* connection_of(const std::string& routing_id, const ZmqMessage& payload);
  void end_violating(const Connection& connection, std::string_view what);
  void refuse(const ZmqMessage& payload, std::string_view peer, std::string_view reason);
  bool end_all_on(int descriptor);  // false: there is none
  void log_stranger(std::string_view what);
  void flush_overflows();
  void end_soon(Connection& connection, std::string_view reason);
  void end_finished();
  void forget(ConnectionId id);
  static LaneSocket tcp_socket_of(const ZmqMessage& payload);
  void shut_down(const LaneSocket& socket);

  Loop& loop_;
  EventLog& log_;
  const ZmqWireOptions& options_;
  LaneEvents& events_;
  CongestionControl& congestion_;
  ZapHandler& zap_;
  ZmqSocket socket_;
  SocketMonitor monitor_;
  std::unique_ptr<SocketWatch> socket_watch_;
  std::unique_ptr<SocketWatch> monitor_watch_;
  Inbox inbox_;
  std::unordered_map<ConnectionId, Connection> connections_;
  std::unordered_map<std::string, ConnectionId> by_routing_id_;
  std::vector<ConnectionId> overflowing_;
  std::vector<ConnectionId> ending_;
  std::set<int> shut_down_;  // descriptors whose end is our doing
  // Routing ids of connections that ended: what libzmq still holds of them is no new connection.
  std::unordered_map<std::string, Nanoseconds> ended_;
  std::deque<std::string> ended_order_;
  int own_ends_ = 0;
  LogPace refused_peers_;
  LogPace strangers_;
  LogPace violations_{kSecond, kViolationsAtOnce};
  std::map<int, Accepted> accepted_;
  OwnedTasks tasks_;  // its timer: the next beat of all connections
  OwnedTasks looks_;  // its timer: the next look at what they have begun to say
};

}  // namespace isthmus::inter

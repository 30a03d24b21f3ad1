// A link of one gateway over real sockets (ZmqLink), with its own loop and log.
#pragma once

#include <memory>
#include <string>

#include "tests/inter/link_world.h"
#include "tests/inter/zmq_world.h"

namespace isthmus::inter {

struct ZmqLink final : WireReceiver {
  explicit ZmqLink(const Clock& clock, std::string name) : loop(clock), log(clock, name) {}
  void start(ZmqWorld& at, std::size_t gateway, std::uint64_t seed) {
    link = std::make_unique<Link>(loop, at.start(gateway, *this), limit, log.log, Random(seed),
                                  owner, world_gateway(gateway), world_gateway(1 - gateway), "peer",
                                  "", LinkOptions{});
    link->start();
  }
  void on_message(GatewayId, Lane lane, ConnectionId c, const SharedBytes& m) override {
    link->wire_message(lane, c, m);
  }
  void on_up(GatewayId, Lane lane, ConnectionId c) override { link->wire_up(lane, c); }
  void on_down(GatewayId, Lane lane, ConnectionId c) override { link->wire_down(lane, c); }
  void on_writable(GatewayId, Lane lane, ConnectionId connection) override {
    link->wire_writable(lane, connection);
  }
  Loop loop;
  RecordedLog log;
  RateLimit limit{0};
  RecordingOwner owner;
  std::unique_ptr<Link> link;
};

}  // namespace isthmus::inter

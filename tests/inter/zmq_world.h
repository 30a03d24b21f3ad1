// Gateways with real wires on loopback ports, all in the test's thread, for the contract
// suite and for what only ZeroMQ can do wrong.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/event_log.h"
#include "inter/loop.h"
#include "inter/socket_check.h"
#include "inter/zmq_wire.h"
#include "tests/inter/wire_contract.h"

namespace isthmus::inter {

class ZmqWorld final : public WireWorld {
 public:
  // Every gateway listens; the higher one of a pair dials.
  explicit ZmqWorld(std::size_t gateways);
  ~ZmqWorld() override;

  Wire& start(std::size_t gateway, WireReceiver& receiver) override;
  void kill(std::size_t gateway) override;
  void pause(std::size_t gateway) override;
  void resume(std::size_t gateway) override;
  bool run_until(const std::function<bool()>& condition, Nanoseconds at_most) override;

  // What start() will use; may be changed before.
  ZmqWireOptions& options(std::size_t gateway);
  const security::Identity& identity(std::size_t gateway) const;
  const CurveKeyPair& key(std::size_t gateway) const;
  std::string control_endpoint(std::size_t gateway) const;
  // How often the gateway has logged this.
  std::size_t count_events(std::size_t gateway, std::string_view id) const;

 private:
  struct Process;
  std::unique_ptr<Clock> clock_;
  std::vector<std::unique_ptr<Process>> processes_;
};

std::unique_ptr<WireWorld> make_zmq_world(std::size_t gateways);

}  // namespace isthmus::inter

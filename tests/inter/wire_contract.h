// The contract of inter/wire.h as a suite that every backend runs: include this header, write a
// WireWorld, and instantiate:
//
//     INSTANTIATE_TEST_SUITE_P(ZeroMq, WireContract,
//                              testing::Values(WireBackend{"zeromq", &make_zmq_world}));
//
// The cases are in wire_contract.cc, which is compiled into the backend's test binary. Beyond what
// the header of Wire says, they hold a backend to this:
// - on_up precedes the first on_message of a connection and on_down follows the last; each comes
//   once per connection, at both ends;
// - the receiver is never called from within a call of the wire, only from the loop;
// - after reset(), on_down follows and no message of that connection; a new connection takes its
//   place without anybody asking again;
// - a message that send() took and whose connection lives arrives once, in a world without loss.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>

#include "base/clock.h"
#include "inter/wire.h"

namespace isthmus::inter {

// A few gateways, all of which know each other, on a network that loses nothing, and their time.
// Gateway i has the id {10 + i, 0}; none runs at first.
class WireWorld {
 public:
  virtual ~WireWorld() = default;

  // Starts the gateway's process, or starts it again; the receiver outlives the world.
  virtual Wire& start(std::size_t gateway, WireReceiver& receiver) = 0;
  // Kills it: no farewell.
  virtual void kill(std::size_t gateway) = 0;
  // Its loop stands still, while its machine goes on.
  virtual void pause(std::size_t gateway) = 0;
  virtual void resume(std::size_t gateway) = 0;

  // Lets everything run until the condition holds (true) or this much of the world's time is over.
  virtual bool run_until(const std::function<bool()>& condition, Nanoseconds at_most) = 0;
};

inline GatewayId world_gateway(std::size_t i) { return {static_cast<SiteId>(10 + i), 0}; }

struct WireBackend {
  const char* name;
  std::unique_ptr<WireWorld> (*make_world)(std::size_t gateways);

  friend std::ostream& operator<<(std::ostream& out, const WireBackend& backend) {
    return out << backend.name;
  }
};

class WireContract : public testing::TestWithParam<WireBackend> {};

}  // namespace isthmus::inter

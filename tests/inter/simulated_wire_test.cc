// The simulated wire under the contract that the real one keeps, in virtual time.
#include <vector>

#include "inter/sim/simulated_network.h"
#include "tests/inter/wire_contract.h"

namespace isthmus::inter::sim {
namespace {

class SimulatedWorld final : public WireWorld {
 public:
  SimulatedWorld(std::size_t gateways, double late_downs)
      : network_(simulation_, Random(1), calm(late_downs)), wires_(gateways) {}

  Wire& start(std::size_t gateway, WireReceiver& receiver) override {
    std::vector<GatewayId> peers;
    for (std::size_t i = 0; i < wires_.size(); ++i)
      if (i != gateway) peers.push_back(world_gateway(i));
    wires_[gateway] = std::make_unique<SimulatedWire>(network_, world_gateway(gateway), peers,
                                                      static_cast<int>(gateway));
    wires_[gateway]->receive_with(receiver);
    return *wires_[gateway];
  }
  void kill(std::size_t gateway) override { wires_[gateway].reset(); }
  void pause(std::size_t gateway) override { wires_[gateway]->pause(); }
  void resume(std::size_t gateway) override { wires_[gateway]->resume(); }
  bool run_until(const std::function<bool()>& condition, Nanoseconds at_most) override {
    const auto end = simulation_.now() + at_most;
    while (!condition()) {
      if (simulation_.empty() || simulation_.next() > end) {
        simulation_.advance(end);
        return condition();
      }
      simulation_.run_one();
    }
    return true;
  }

 private:
  static NetworkFaults calm(double late_downs) {
    NetworkFaults faults;
    faults.silent_deaths = 0;
    faults.late_downs = late_downs;
    return faults;
  }
  Simulation simulation_;
  SimulatedNetwork network_;
  std::vector<std::unique_ptr<SimulatedWire>> wires_;
};

std::unique_ptr<WireWorld> make_simulated_world(std::size_t gateways) {
  return std::make_unique<SimulatedWorld>(gateways, 0);
}

// Each end of each connection is noticed late, often after the next connection is up.
std::unique_ptr<WireWorld> make_late_world(std::size_t gateways) {
  return std::make_unique<SimulatedWorld>(gateways, 1);
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Simulated, WireContract,
                         testing::Values(WireBackend{"simulated", &make_simulated_world},
                                         WireBackend{"simulated_late", &make_late_world}));

}  // namespace isthmus::inter::sim

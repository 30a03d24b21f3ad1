// The simulated wire under the contract that the real one keeps, in virtual time.
#include <map>
#include <set>
#include <vector>

#include "inter/sim/simulated_network.h"
#include "tests/inter/wire_contract.h"

namespace isthmus::inter::sim {
namespace {

class SimulatedWorld final : public WireWorld {
 public:
  SimulatedWorld(std::size_t gateways, double late_downs, SimulatedTcp tcp = SimulatedTcp::unseen)
      : network_(simulation_, Random(1), calm(late_downs, tcp)), wires_(gateways) {}

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
  static NetworkFaults calm(double late_downs, SimulatedTcp tcp) {
    NetworkFaults faults;
    faults.tcp = tcp;
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

std::unique_ptr<WireWorld> make_world_with_tcp(std::size_t gateways) {
  return std::make_unique<SimulatedWorld>(gateways, 0, SimulatedTcp::bbr);
}

struct Connections final : WireReceiver {
  void on_message(GatewayId, Lane, ConnectionId connection, const SharedBytes& message) override {
    received[connection] += message.size();
  }
  void on_up(GatewayId, Lane lane, ConnectionId connection) override {
    if (lane == Lane::bulk) bulk.insert(connection);
  }
  void on_down(GatewayId, Lane, ConnectionId connection) override { bulk.erase(connection); }
  void on_writable(GatewayId, Lane, ConnectionId) override {}
  std::set<ConnectionId> bulk;
  std::map<ConnectionId, std::size_t> received;
};

TEST(SimulatedTcpWire, HasAsManyBulkConnectionsAsEitherEndWants) {
  SimulatedWorld world(2, 0, SimulatedTcp::bbr);
  Connections a, b;
  auto &first = world.start(0, a), &second = world.start(1, b);
  ASSERT_TRUE(world.run_until([&] { return a.bulk.size() == 1 && b.bulk.size() == 1; }, kSecond));
  first.widen(world_gateway(1), 3);
  second.widen(world_gateway(0), 2);
  ASSERT_TRUE(world.run_until([&] { return a.bulk.size() == 3 && b.bulk.size() == 3; }, kSecond));
  EXPECT_EQ(a.bulk, b.bulk);
  // Each carries its own, and only one ends.
  for (const auto connection : a.bulk)
    ASSERT_TRUE(first.send(world_gateway(1), Lane::bulk, Bytes(1000), connection));
  ASSERT_TRUE(world.run_until([&] { return b.received.size() == 3; }, kSecond));
  const auto dead = *a.bulk.begin();
  first.reset(world_gateway(1), Lane::bulk, dead);
  ASSERT_TRUE(
      world.run_until([&] { return !a.bulk.contains(dead) && !b.bulk.contains(dead); }, kSecond));
  EXPECT_EQ(a.bulk.size(), 2U);
  EXPECT_TRUE(
      world.run_until([&] { return a.bulk.size() == 3 && b.bulk.size() == 3; }, 2 * kSecond));
  // Who is started again begins with as many as the other end wants.
  world.kill(1);
  ASSERT_TRUE(world.run_until([&] { return a.bulk.empty(); }, kSecond));
  Connections c;
  world.start(1, c);
  EXPECT_TRUE(
      world.run_until([&] { return a.bulk.size() == 3 && c.bulk.size() == 3; }, 2 * kSecond));
}

TEST(SimulatedTcpWire, SaysWhatTcpKnowsOfEachAndPacesEach) {
  SimulatedWorld world(2, 0, SimulatedTcp::bbr);
  Connections a, b;
  auto& wire = world.start(0, a);
  world.start(1, b);
  wire.widen(world_gateway(1), 2);
  ASSERT_TRUE(world.run_until([&] { return a.bulk.size() == 2 && b.bulk.size() == 2; }, kSecond));
  const auto slow = *a.bulk.begin(), fast = *a.bulk.rbegin();
  wire.pace(world_gateway(1), slow, 1e5);
  for (const auto connection : {slow, fast})
    ASSERT_TRUE(wire.send(world_gateway(1), Lane::bulk, Bytes(500'000), connection));
  ASSERT_TRUE(world.run_until([&] { return b.received.contains(fast); }, 2 * kSecond));
  EXPECT_FALSE(b.received.contains(slow));
  const auto paths = wire.bulk_paths(world_gateway(1));
  ASSERT_EQ(paths.size(), 2U);
  EXPECT_EQ(paths[0].connection, slow);
  EXPECT_EQ(paths[1].connection, fast);
  EXPECT_GT(paths[0].tcp.waiting_bytes, 100'000U);
  EXPECT_LT(paths[1].tcp.waiting_bytes, paths[0].tcp.waiting_bytes);
  EXPECT_EQ(paths[0].tcp.congestion_control, "bbr");
  EXPECT_TRUE(world.run_until([&] { return b.received.contains(slow); }, 6 * kSecond));
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Simulated, WireContract,
                         testing::Values(WireBackend{"simulated", &make_simulated_world},
                                         WireBackend{"simulated_late", &make_late_world},
                                         WireBackend{"simulated_tcp", &make_world_with_tcp}));

}  // namespace isthmus::inter::sim

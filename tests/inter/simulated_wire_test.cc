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
  void cut(bool cut) {  // from the first to the second
    network_.cut(world_gateway(0), world_gateway(1), cut);
  }
  Nanoseconds now() const { return simulation_.now(); }
  void run_for(Nanoseconds time) {
    run_until([] { return false; }, time);
  }
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
    if (lane == Lane::control) control.insert(connection);
  }
  void on_down(GatewayId, Lane, ConnectionId connection) override {
    bulk.erase(connection);
    control.erase(connection);
  }
  void on_writable(GatewayId, Lane, ConnectionId) override { ++writable; }
  int writable = 0;
  std::set<ConnectionId> bulk, control;
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

// What is beyond the limit of the end that does not dial ends, and comes again when it may.
TEST(SimulatedTcpWire, TheDialingEndKeepsToThePeersLimit) {
  SimulatedWorld world(2, 0, SimulatedTcp::bbr);
  Connections a, b;
  auto &first = world.start(0, a), &second = world.start(1, b);
  const auto both_have = [&](std::size_t connections) {
    return world.run_until(
        [&] { return a.bulk.size() == connections && b.bulk.size() == connections; }, 2 * kSecond);
  };
  ASSERT_TRUE(both_have(1));
  second.limit_width(world_gateway(0), 4);
  second.widen(world_gateway(0), 16);
  ASSERT_TRUE(both_have(4));
  world.run_for(10 * kSecond);
  EXPECT_EQ(a.bulk.size(), 4U);
  second.limit_width(world_gateway(0), 2);
  ASSERT_TRUE(both_have(2));
  world.run_for(10 * kSecond);  // longer than it waits to dial again
  EXPECT_EQ(a.bulk.size(), 2U);
  // While they are being dialed.
  second.limit_width(world_gateway(0), 8);
  second.widen(world_gateway(0), 16);
  world.run_for(50 * kMillisecond);
  second.limit_width(world_gateway(0), 3);
  ASSERT_TRUE(both_have(3));
  world.run_for(10 * kSecond);
  EXPECT_EQ(a.bulk.size(), 3U);
  // The end that listens makes none, so that what it may make is nothing to it.
  first.limit_width(world_gateway(1), 1);
  world.run_for(10 * kSecond);
  EXPECT_EQ(a.bulk.size(), 3U);
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

TEST(SimulatedTcpWire, ACutPushesBackAndWhatWaitsComesAfterIt) {
  SimulatedWorld world(2, 0, SimulatedTcp::bbr);
  Connections a, b;
  auto &first = world.start(0, a), &second = world.start(1, b);
  ASSERT_TRUE(world.run_until([&] { return a.bulk.size() == 1 && b.bulk.size() == 1; }, kSecond));
  world.cut(true);
  std::size_t taken = 0;
  while (first.send(world_gateway(1), Lane::bulk, Bytes(500'000), 0)) ++taken;
  EXPECT_GT(taken, 0U);
  // Nor what the other one sends: it comes, but nobody can tell it so.
  ASSERT_TRUE(second.send(world_gateway(0), Lane::bulk, Bytes(500'000), 0));
  world.run_for(6 * kSecond);
  EXPECT_EQ(a.writable, 0);
  EXPECT_TRUE(a.received.empty());
  EXPECT_TRUE(b.received.empty());
  for (const auto& [wire, peer] : {std::pair(&first, 1), std::pair(&second, 0)}) {
    const auto tcp = wire->bulk_paths(world_gateway(static_cast<std::size_t>(peer))).at(0).tcp;
    EXPECT_EQ(tcp.acknowledged_bytes, 0U);
    EXPECT_GT(tcp.waiting_bytes, 490'000U);
    EXPECT_GT(*tcp.silence, 5 * kSecond);
  }
  world.cut(false);
  EXPECT_TRUE(world.run_until(
      [&] { return a.received.size() == 1 && b.received[*b.bulk.begin()] == taken * 500'000; },
      20 * kSecond));
  EXPECT_GT(a.writable, 0);
}

// After as long as the real wire's TCP, with or without something to send; and what is there again
// is found as soon as the real one finds it.
TEST(SimulatedTcpWire, ALongCutEndsConnectionsAndTheyAreDialedAgain) {
  SimulatedWorld world(2, 0);
  Connections a, b;
  world.start(0, a), world.start(1, b);
  const auto all = [&](std::size_t count) {
    return a.bulk.size() == count && b.bulk.size() == count && a.control.size() == count &&
           b.control.size() == count;
  };
  ASSERT_TRUE(world.run_until([&] { return all(1); }, kSecond));
  world.cut(true);
  world.run_for(7900 * kMillisecond);
  EXPECT_TRUE(all(1));
  world.run_for(2200 * kMillisecond);
  EXPECT_TRUE(all(0));
  world.run_for(9900 * kMillisecond);
  world.cut(false);
  // An attempt of 400 ms that met silence, and a handshake of five round trips of 40 ms.
  EXPECT_TRUE(world.run_until([&] { return all(1); }, 650 * kMillisecond));
}

TEST(SimulatedTcpWire, WhoIsNotThereIsDialedEverMoreSeldom) {
  SimulatedWorld world(2, 0);
  Connections a, b;
  world.start(1, b);  // the one that dials
  world.run_for(20 * kSecond);
  // Refused after a round trip each time, it waits for 0.2, 0.4, 0.8 … 5 s: until 21.5 s.
  world.start(0, a);
  EXPECT_FALSE(world.run_until([&] { return !b.control.empty(); }, 1400 * kMillisecond));
  EXPECT_TRUE(world.run_until([&] { return !b.control.empty(); }, 600 * kMillisecond));
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Simulated, WireContract,
                         testing::Values(WireBackend{"simulated", &make_simulated_world},
                                         WireBackend{"simulated_late", &make_late_world},
                                         WireBackend{"simulated_tcp", &make_world_with_tcp}));

}  // namespace isthmus::inter::sim

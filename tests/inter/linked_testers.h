// Link testers of three sites on a simulated network, for the tests of LinkTester.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "inter/link_tester.h"
#include "inter/sim/simulated_network.h"

namespace isthmus::inter {

class TesterNode final : public WireReceiver {
 public:
  static constexpr GatewayId kAlpha{1, 0}, kBeta{2, 0}, kGamma{3, 0};

  TesterNode(sim::Simulation& simulation, sim::SimulatedNetwork& network, GatewayId self,
             std::vector<GatewayId> peers)
      : loop(simulation),
        log(simulation, "site"),
        wire(network, self, std::move(peers), -1),
        tester({.loop = loop,
                .wire = wire,
                .limit = limit,
                .log = log,
                .random = Random(self.site),
                .self = name(self),
                .name_of = [](GatewayId id) { return name(id); },
                .side =
                    [this] {
                      ++side_asked;
                      return side;
                    },
                .exchange = [this] { return exchange; },
                .objection = [this] { return objection; }}) {
    wire.receive_with(*this);
  }
  ~TesterNode() override { loop.abandon(); }

  static std::string name(GatewayId id) {
    return id == kAlpha ? "alpha" : id == kBeta ? "beta" : "gamma";
  }
  void on_message(GatewayId peer, Lane lane, ConnectionId, const SharedBytes& message) override {
    if (deaf) return;
    const auto bytes = message.bytes();
    if (ignores_others && bytes.front() != static_cast<std::byte>(kLinkTestFrame)) return;
    ASSERT_EQ(bytes.front(), static_cast<std::byte>(kLinkTestFrame));
    if (hears) return hears(bytes.subspan(1));
    tester.on_message(peer, lane, bytes.subspan(1));
  }
  void on_up(GatewayId, Lane, ConnectionId) override { ++up; }
  void on_down(GatewayId, Lane, ConnectionId) override {}
  void on_writable(GatewayId, Lane lane, ConnectionId) override {
    if (lane == Lane::bulk) tester.on_writable();
  }

  Loop loop;
  EventLog log;
  RateLimit limit{0};
  LinkTestSide side{.tcp_rmem = "4096 131072 6291456", .tcp_wmem = "4096 16384 4194304"};
  std::string exchange, objection;
  bool deaf = false, ignores_others = false;
  std::function<void(std::span<const std::byte>)> hears;  // in place of the tester
  int up = 0, side_asked = 0;
  sim::SimulatedWire wire;
  LinkTester tester;
};

class LinkTesterTest : public testing::Test {
 protected:
  static constexpr auto kAlpha = TesterNode::kAlpha, kBeta = TesterNode::kBeta,
                        kGamma = TesterNode::kGamma;

  static sim::NetworkFaults calm() {
    sim::NetworkFaults faults;
    faults.silent_deaths = faults.late_downs = faults.jitter = 0;
    return faults;
  }
  explicit LinkTesterTest(sim::NetworkFaults faults = calm())
      : network(simulation, Random(1), faults) {
    run_for(2 * kSecond);
    EXPECT_GE(alpha.up, 2);
  }
  void run_for(Nanoseconds time) {
    const auto end = simulation.now() + time;
    for (;;) {
      for (auto* node : {&alpha, &beta, &gamma}) node->loop.run_ready();
      Nanoseconds next = end + 1;
      bool timer = false;
      if (!simulation.empty()) next = std::min(next, simulation.next());
      for (auto* node : {&alpha, &beta, &gamma})
        if (const auto when = node->loop.next_timer(); when && *when < next) {
          next = *when;
          timer = true;
        }
      if (next > end) return simulation.advance(end);
      if (timer)
        simulation.advance(std::max(simulation.now(), next));
      else
        simulation.run_one();
    }
  }
  // Begins one, or asks after it; the same number for the same test.
  Result<std::string> ask(TesterNode& node, std::uint64_t number,
                          LinkTester::Wish wish = {.peer = kBeta}) {
    return node.tester.ask(number, wish);
  }
  // What came of a test that alpha begins.
  Result<nlohmann::json> outcome(LinkTester::Wish wish = {.peer = kBeta},
                                 const std::function<void()>& meanwhile = {}) {
    const auto number = ++numbers;
    auto said = ask(alpha, number, wish);
    for (int i = 0; i < 1000 && said; ++i) {
      auto json = nlohmann::json::parse(*said);
      if (json["state"] == "done") return json;
      run_for(100 * kMillisecond);
      if (i == 20 && meanwhile) meanwhile();
      said = ask(alpha, number, wish);
    }
    return said ? Result<nlohmann::json>(Error{ErrorCode::timeout, "it never ends"})
                : Result<nlohmann::json>(said.error());
  }
  static std::string why(const Result<nlohmann::json>& result) {
    return result ? "it went well" : result.error().text();
  }

  std::uint64_t numbers = 0;
  sim::Simulation simulation;
  sim::SimulatedNetwork network;
  TesterNode alpha{simulation, network, kAlpha, {kBeta, kGamma}};
  TesterNode beta{simulation, network, kBeta, {kAlpha, kGamma}};
  TesterNode gamma{simulation, network, kGamma, {kAlpha, kBeta}};
};

}  // namespace isthmus::inter

// Two gateways with a link between them on a simulated network, calm or bad (LinkPair).
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/inter/link_world.h"

namespace isthmus::inter {

// The second one has the first one's identity.
inline constexpr GatewayId kAlpha{1, 0}, kTwin{1, 1}, kBeta{2, 0};

// Links see what TCP knows, as they do in reality.
inline sim::NetworkFaults calm(sim::SimulatedTcp tcp = sim::SimulatedTcp::bbr) {
  sim::NetworkFaults faults;
  faults.tcp = tcp;
  faults.silent_deaths = 0;
  faults.late_downs = 0;
  return faults;
}

inline sim::NetworkFaults bad() {
  auto faults = calm();
  faults.loss = 0.1;
  faults.duplicate = 0.1;
  faults.reorder = 0.3;
  faults.late_downs = 0.5;
  return faults;
}

inline std::vector<std::uint64_t> first_numbers(std::size_t count) {
  std::vector<std::uint64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

class LinkPair : public testing::Test {
 protected:
  void start(sim::NetworkFaults faults = calm(), LinkOptions options = {}, std::uint64_t seed = 1) {
    world = std::make_unique<LinkWorld>(faults, seed);
    alpha = &world->start(kAlpha, {kBeta}, {}, options);
    beta = &world->start(kBeta, {kAlpha, kTwin}, {}, options);
    ASSERT_TRUE(wait([&] { return alpha->link->up() && beta->link->up(); }));
    EXPECT_EQ(alpha->link->session(), beta->link->session());
  }
  bool wait(const std::function<bool()>& condition, Nanoseconds at_most = 120 * kSecond) {
    return world->run_until(condition, at_most);
  }
  // Each end's chunks reach the other, whatever stood before.
  void expect_working(std::size_t messages = 20) {
    for (auto [from, to] : {std::pair(alpha, beta), std::pair(beta, alpha)}) {
      to->owner.numbers.clear();
      to->owner.chunks.clear();
      for (std::uint64_t i = 0; i < messages; ++i) from->link->send(numbered(i));
      from->link->withdraw(last_transfer++);
      from->link->offer(last_transfer, 0, 10, std::make_shared<NumberedChunks>(1000), false);
      ASSERT_TRUE(wait([&] { return from->link->drained() && to->owner.chunks.size() >= 10; }))
          << to->owner.numbers.size() << " messages, " << to->owner.chunks.size()
          << " chunks; waits for " << from->link->status().waiting_for;
      EXPECT_EQ(to->owner.numbers, first_numbers(messages));
    }
  }

  std::unique_ptr<LinkWorld> world;
  LinkWorld::Node* alpha = nullptr;
  LinkWorld::Node* beta = nullptr;
  TransferId last_transfer = 100;  // the last one of expect_working
};

}  // namespace isthmus::inter

// How connections share lines and what loss does to them, in virtual time.
#include "inter/sim/tcp_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "inter/sim/simulated_network.h"

namespace isthmus::inter::sim {
namespace {

constexpr double kRate = 1.25e6;  // 10 Mbit/s
constexpr Nanoseconds kDelay = 50 * kMillisecond;
constexpr std::size_t kQueue = 64 << 10;

// A site's line up, and those down of two others.
class TcpStreamTest : public testing::Test {
 protected:
  std::shared_ptr<TcpStream> stream(AccessLink& to, SimulatedTcp kind = SimulatedTcp::reno) {
    return std::make_shared<TcpStream>(simulation, up, to, path, back, Random(++streams), kind);
  }
  // Sends this much in messages of 10 kB, and keeps the number of each as it comes.
  void send(TcpStream& stream, std::size_t bytes, std::vector<int>& arrived) {
    for (std::size_t i = 0; i * 10'000 < bytes; ++i)
      stream.send(
          10'000, [] {},
          [this, &arrived, i] {
            arrived.push_back(static_cast<int>(i));
            last = simulation.now();
          });
  }
  void run_until(Nanoseconds end) {
    while (!simulation.empty() && simulation.next() <= end) simulation.run_one();
    simulation.advance(end);
  }
  void run() {
    while (!simulation.empty()) simulation.run_one();
  }
  static void expect_all_in_order(const std::vector<int>& arrived, std::size_t messages) {
    ASSERT_EQ(arrived.size(), messages);
    for (std::size_t i = 0; i < messages; ++i) EXPECT_EQ(arrived[i], static_cast<int>(i));
  }

  Simulation simulation;
  AccessLink up{simulation, kRate, kQueue};
  AccessLink down{simulation, 10 * kRate, kQueue}, other_down{simulation, 10 * kRate, kQueue};
  SimulatedPath path{kDelay}, back{kDelay};
  std::uint64_t streams = 0;
  Nanoseconds last = 0;
};

TEST_F(TcpStreamTest, BeginsWithTenPackets) {
  const auto tcp = stream(down);
  std::vector<int> arrived;
  send(*tcp, 1'000'000, arrived);
  run_until(kDelay);
  EXPECT_EQ(tcp->in_flight(), 10 * kSegmentBytes);
  // Twice as many with each round trip.
  run_until(2 * kDelay + 30 * kMillisecond);
  EXPECT_NEAR(tcp->window(), 20.0 * kSegmentBytes, kSegmentBytes);
}

TEST_F(TcpStreamTest, UsesTheWholeLineAfterItsSlowStart) {
  const auto tcp = stream(down);
  std::vector<int> arrived;
  send(*tcp, 20'000'000, arrived);
  run_until(5 * kSecond);
  const auto early = arrived.size();
  run_until(10 * kSecond);
  const double rate = static_cast<double>(arrived.size() - early) * 10'000 / 5;
  EXPECT_GT(rate, 0.75 * kRate);
  EXPECT_LE(rate, 1.01 * kRate);
  run();
  expect_all_in_order(arrived, 2000);
}

TEST_F(TcpStreamTest, AQueueThatOverflowsHalvesTheWindow) {
  const auto tcp = stream(down);
  std::vector<int> arrived;
  send(*tcp, 20'000'000, arrived);
  // Until it is narrower than it was.
  double widest = 0;
  while (tcp->window() >= widest && !simulation.empty()) {
    widest = tcp->window();
    simulation.run_one();
    EXPECT_LE(up.wait(), static_cast<Nanoseconds>(1e9 * (kQueue + (16 << 10)) / kRate));
  }
  EXPECT_GT(tcp->losses(), 0U);
  EXPECT_GT(widest, kQueue);
  EXPECT_NEAR(tcp->window(), widest / 2, kSegmentBytes);
  run();
  expect_all_in_order(arrived, 2000);
}

TEST_F(TcpStreamTest, TwoPathsShareTheLine) {
  const auto one = stream(down), two = stream(other_down);
  std::vector<int> first, second;
  send(*one, 10'000'000, first);
  send(*two, 10'000'000, second);
  run_until(6 * kSecond);
  const auto both = static_cast<double>(first.size() + second.size()) * 10'000 / 6;
  EXPECT_GT(both, 0.65 * kRate);
  EXPECT_LE(both, 1.01 * kRate);
  EXPECT_GT(std::min(first.size(), second.size()), std::max(first.size(), second.size()) / 3);
  run();
  EXPECT_GT(last, static_cast<Nanoseconds>(1e9 * 20e6 / kRate)) << "not faster than the line";
  expect_all_in_order(first, 1000);
  expect_all_in_order(second, 1000);
}

TEST_F(TcpStreamTest, LossMakesItSlowerAndNothingIsMissing) {
  Nanoseconds took[2];
  for (const bool lossy : {false, true}) {
    path.packet_loss = lossy ? 0.01 : 0;
    const auto began = simulation.now();
    const auto tcp = stream(down);
    std::vector<int> arrived;
    send(*tcp, 5'000'000, arrived);
    run();
    expect_all_in_order(arrived, 500);
    took[lossy] = last - began;
    EXPECT_EQ(tcp->losses() > 10, lossy);
  }
  EXPECT_GT(took[1], 2 * took[0]);
}

TEST_F(TcpStreamTest, UnderBbrLossMakesItLittleSlower) {
  path.packet_loss = 0.01;
  const auto tcp = stream(down, SimulatedTcp::bbr);
  std::vector<int> arrived;
  send(*tcp, 20'000'000, arrived);
  run_until(3 * kSecond);
  const auto early = arrived.size();
  run_until(13 * kSecond);
  EXPECT_GT(static_cast<double>(arrived.size() - early) * 10'000 / 10, 0.85 * kRate);
  EXPECT_GT(tcp->losses(), 50U);
  // Two bandwidth-delay products, whatever is lost.
  EXPECT_NEAR(tcp->window(), 2 * kRate * seconds_of(2 * kDelay),
              0.3 * kRate * seconds_of(2 * kDelay));
  run();
  expect_all_in_order(arrived, 2000);
}

TEST_F(TcpStreamTest, SendsNoFasterThanItsPace) {
  const auto tcp = stream(down);
  std::vector<int> arrived;
  tcp->pace(kRate / 4);
  send(*tcp, 20'000'000, arrived);
  run_until(10 * kSecond);
  const auto paced = arrived.size();
  EXPECT_NEAR(static_cast<double>(paced) * 10'000 / 10, kRate / 4, 0.05 * kRate / 4);
  EXPECT_EQ(tcp->losses(), 0U);
  tcp->pace(std::nullopt);
  run_until(20 * kSecond);
  EXPECT_GT(static_cast<double>(arrived.size() - paced) * 10'000 / 10, 0.7 * kRate);
  run();
  expect_all_in_order(arrived, 2000);
}

// As the kernel does it: what was sent at next to nothing keeps the next packet waiting.
TEST_F(TcpStreamTest, AFasterPaceComesTooLateForWhatWaitsAlready) {
  const auto tcp = stream(down);
  std::vector<int> arrived;
  tcp->pace(1);
  send(*tcp, 100'000, arrived);
  run_until(kSecond);
  tcp->pace(kRate);
  run_until(60 * kSecond);
  EXPECT_EQ(arrived.size(), 0U);
}

TEST_F(TcpStreamTest, ItsFactsAddUp) {
  for (const auto kind : {SimulatedTcp::reno, SimulatedTcp::bbr}) {
    const auto tcp = stream(down, kind);
    std::vector<int> arrived;
    auto facts = tcp->facts();
    EXPECT_EQ(facts.congestion_control, kind == SimulatedTcp::bbr ? "bbr" : "reno");
    EXPECT_EQ(facts.waiting_bytes, 0U);
    EXPECT_TRUE(facts.slow_start);
    const auto began = simulation.now();
    send(*tcp, 1'000'000, arrived);
    std::uint64_t delivered = 0;
    for (int i = 0; i < 40; ++i) {
      run_until(simulation.now() + 20 * kMillisecond);
      facts = tcp->facts();
      EXPECT_GE(facts.delivered_bytes, delivered);
      delivered = facts.delivered_bytes;
      EXPECT_LE(facts.acknowledged_bytes, facts.delivered_bytes);
      EXPECT_EQ(facts.waiting_bytes + facts.delivered_bytes, 1'000'000U);
      EXPECT_LE(facts.unsent_bytes, facts.waiting_bytes);
      EXPECT_GE(facts.round_trip, facts.round_trip_min);
    }
    run();
    run_until(simulation.now() + kDelay);  // the last acknowledgement
    facts = tcp->facts();
    EXPECT_EQ(facts.acknowledged_bytes, 1'000'000U);
    EXPECT_EQ(facts.unsent_bytes + facts.waiting_bytes, 0U);
    EXPECT_EQ(facts.round_trip_min, 2 * kDelay);
    EXPECT_NEAR(seconds_of(facts.busy), seconds_of(last + kDelay - began), 0.01);
    EXPECT_NEAR(static_cast<double>(facts.segments_sent),
                1e6 / kSegmentBytes + static_cast<double>(facts.segments_resent), 2);
  }
}

TEST_F(TcpStreamTest, ALostPacketComesARoundTripLaterAndHoldsUpWhatIsBehind) {
  AccessLink tiny(simulation, kRate, 3000);
  const auto tcp = std::make_shared<TcpStream>(simulation, tiny, down, path, back, Random(1));
  std::vector<Nanoseconds> arrived;
  const auto note = [&] { arrived.push_back(simulation.now()); };
  tcp->send(
      2000, [] {}, note);
  tcp->send(
      2000, [] {}, note);  // no room for its last packet
  tcp->send(
      200, [] {}, note);
  run();
  ASSERT_EQ(arrived.size(), 3U);
  EXPECT_LT(arrived[0], kDelay + 10 * kMillisecond);
  EXPECT_GT(arrived[1], 3 * kDelay);
  EXPECT_GE(arrived[2], arrived[1]);
  EXPECT_GT(tcp->losses(), 0U);
}

// --- Cuts

// As a kernel does it: nothing is acknowledged, so next to nothing is sent, ever more seldom.
TEST_F(TcpStreamTest, NothingPassesACutAndNothingIsMissingAfterIt) {
  for (const auto kind : {SimulatedTcp::reno, SimulatedTcp::bbr})
    for (const int ways : {1, 2, 3}) {
      const auto tcp = stream(down, kind);
      std::vector<int> arrived;
      send(*tcp, 20'000'000, arrived);
      run_until(simulation.now() + 3 * kSecond);
      path.cut = ways != 2;
      back.cut = ways != 1;
      const auto began = simulation.now();
      run_until(began + kSecond);  // what was on its way has come, or is known not to
      const auto facts = tcp->facts();
      const auto came = arrived.size();
      EXPECT_EQ(facts.window_bytes, kSegmentBytes);
      run_until(began + 20 * kSecond);
      const auto later = tcp->facts();
      EXPECT_EQ(arrived.size(), came);
      EXPECT_LT(tcp->last_arrival(), began + kSecond);
      EXPECT_EQ(later.acknowledged_bytes, facts.acknowledged_bytes);
      EXPECT_EQ(later.unsent_bytes, facts.unsent_bytes);
      EXPECT_GT(later.waiting_bytes, later.unsent_bytes);
      EXPECT_GE(later.segments_resent, facts.segments_resent + 3);
      EXPECT_LE(later.segments_resent, facts.segments_resent + 6);
      path.cut = back.cut = false;
      // The next time it asks.
      run_until(began + 45 * kSecond);
      EXPECT_GT(arrived.size(), came + 200) << ways;
      run();
      expect_all_in_order(arrived, 2000);
    }
}

TEST_F(TcpStreamTest, TheTimerDoublesInACut) {
  const auto tcp = stream(down);
  std::vector<int> arrived;
  path.cut = true;
  send(*tcp, 10'000, arrived);
  std::vector<double> asked;
  for (auto resent = tcp->facts().segments_resent; asked.size() < 6 && !simulation.empty();) {
    simulation.run_one();
    if (tcp->facts().segments_resent == resent) continue;
    resent = tcp->facts().segments_resent;
    asked.push_back(seconds_of(simulation.now()));
  }
  const auto first = seconds_of(2 * kDelay) + 0.2;
  ASSERT_EQ(asked.size(), 6U);
  EXPECT_NEAR(asked[0], first, 0.02);
  for (std::size_t i = 1; i < asked.size(); ++i)
    EXPECT_NEAR(asked[i] - asked[i - 1], first * (1 << i), 0.02) << i;
  path.cut = false;
  run();
  expect_all_in_order(arrived, 1);
  EXPECT_LT(seconds_of(last), asked.back() + first * (1 << 6) + 1);
}

// Each acknowledgement says what those before it said.
TEST_F(TcpStreamTest, LostAcknowledgementsAloneCauseNothing) {
  const auto tcp = stream(down, SimulatedTcp::bbr);
  std::vector<int> arrived;
  send(*tcp, 10'000'000, arrived);
  run_until(3 * kSecond);
  const auto before = tcp->facts().segments_resent;
  back.cut = true;
  run_until(simulation.now() + 50 * kMillisecond);
  back.cut = false;
  run_until(simulation.now() + kSecond);
  EXPECT_EQ(tcp->facts().segments_resent, before);
  run();
  expect_all_in_order(arrived, 1000);
  run_until(simulation.now() + kDelay);
  EXPECT_EQ(tcp->facts().acknowledged_bytes, 10'000'000U);
}

TEST_F(TcpStreamTest, WhatIsOnItsWayArrivesWhenTheConnectionIsDead) {
  const auto tcp = stream(down);
  std::vector<int> arrived;
  send(*tcp, 100'000, arrived);
  run_until(kMillisecond);
  tcp->end();
  run();
  EXPECT_EQ(arrived.size(), 1U) << "ten packets";
}

// The lanes of one peer and all other peers, through the wires.
TEST(SharedLine, IsOneForAllPathsAndLanes) {
  class Counter final : public WireReceiver {
   public:
    void on_message(GatewayId, Lane, ConnectionId, const SharedBytes& message) override {
      bytes += message.size();
    }
    void on_up(GatewayId, Lane, ConnectionId) override { ++up; }
    void on_down(GatewayId, Lane, ConnectionId) override {}
    void on_writable(GatewayId, Lane, ConnectionId) override {}
    std::size_t bytes = 0;
    int up = 0;
  };
  Simulation simulation;
  NetworkFaults faults;
  faults.bytes_per_second = 12.5e6;
  SimulatedNetwork network(simulation, Random(1), faults);
  network.set_access(1, 1e5);
  const GatewayId a{1, 0}, b{2, 0}, c{3, 0};
  SimulatedWire wa(network, a, {b, c}, -1), wb(network, b, {a, c}, -1), wc(network, c, {a, b}, -1);
  Counter ra, rb, rc;
  wa.receive_with(ra);
  wb.receive_with(rb);
  wc.receive_with(rc);
  const auto run_for = [&](Nanoseconds time) {
    const auto end = simulation.now() + time;
    while (!simulation.empty() && simulation.next() <= end) {
      simulation.run_one();
      for (const auto peer : {b, c}) {
        if (ra.up < 4) continue;
        for (const auto lane : {Lane::bulk, Lane::control})
          while (wa.send(peer, lane, Bytes(5000), 0)) {
          }
      }
    }
    simulation.advance(end);
  };
  run_for(12 * kSecond);
  const auto before = rb.bytes + rc.bytes;
  run_for(10 * kSecond);
  const auto rate = static_cast<double>(rb.bytes + rc.bytes - before) / 10;
  EXPECT_GT(rate, 0.7e5);
  EXPECT_LT(rate, 1.06e5);
  ASSERT_NE(network.stream(a, b, Lane::bulk), nullptr);
  network.slow_down(1, 10);
  run_for(20 * kSecond);
  const auto slow_before = rb.bytes + rc.bytes;
  run_for(20 * kSecond);
  EXPECT_LT(static_cast<double>(rb.bytes + rc.bytes - slow_before) / 20, 1.1e4);
}

}  // namespace
}  // namespace isthmus::inter::sim

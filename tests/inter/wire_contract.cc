#include "tests/inter/wire_contract.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace isthmus::inter {

namespace {

constexpr std::array kBothLanes{Lane::control, Lane::bulk};

// Long enough for a lost peer to be noticed and dialed again.
constexpr Nanoseconds kWirePatience = 30 * kSecond;
// Long enough for what must not happen to show.
constexpr Nanoseconds kMoment = 300 * kMillisecond;

constexpr std::size_t bytes_max(Lane lane) {
  return lane == Lane::control ? kControlMessageBytesMax : kBulkMessageBytesMax;
}

// Bytes that follow from their number and place, so that any mix-up shows.
Bytes numbered_message(std::uint64_t number, std::size_t size) {
  Bytes message(size);
  for (std::size_t at = 0; at < size; at += 8) {
    const auto word = number + at * 0x9e3779b97f4a7c15U;
    std::memcpy(message.data() + at, &word, std::min<std::size_t>(8, size - at));
  }
  return message;
}

// The number of a whole message; fails the test when any byte is wrong.
std::uint64_t number_of(const Bytes& message) {
  std::uint64_t number = 0;
  std::memcpy(&number, message.data(), std::min<std::size_t>(8, message.size()));
  EXPECT_EQ(message, numbered_message(number, message.size()));
  return number;
}

struct Arrival {
  GatewayId peer;
  Lane lane;
  ConnectionId connection;
  Bytes message;
};

// Writes down everything, and holds the backend to the order of calls.
class Recorder final : public WireReceiver {
 public:
  void on_message(GatewayId peer, Lane lane, ConnectionId connection,
                  const SharedBytes& message) override {
    check_not_inside();
    EXPECT_TRUE(live.contains(connection)) << "a message of a connection that is not up";
    arrivals.push_back({peer, lane, connection, Bytes(message.begin(), message.end())});
  }
  void on_up(GatewayId peer, Lane lane, ConnectionId connection) override {
    check_not_inside();
    EXPECT_NE(connection, 0U);
    EXPECT_TRUE(seen.insert(connection).second) << "a connection's number came twice";
    live.emplace(connection, std::pair(peer, lane));
  }
  void on_down(GatewayId peer, Lane lane, ConnectionId connection) override {
    check_not_inside();
    const auto found = live.find(connection);
    ASSERT_NE(found, live.end()) << "down without up";
    EXPECT_EQ(found->second, std::pair(peer, lane));
    live.erase(found);
  }
  void on_writable(GatewayId peer, Lane lane, ConnectionId) override {
    check_not_inside();
    ++writable[{peer, lane}];
  }

  ConnectionId connection(std::size_t peer, Lane lane) const {
    ConnectionId newest = 0;
    for (const auto& [id, where] : live)
      if (where == std::pair(world_gateway(peer), lane)) newest = std::max(newest, id);
    return newest;
  }
  bool up(std::size_t peer) const {
    return connection(peer, Lane::control) != 0 && connection(peer, Lane::bulk) != 0;
  }
  bool down(std::size_t peer) const {
    return connection(peer, Lane::control) == 0 && connection(peer, Lane::bulk) == 0;
  }

  std::map<ConnectionId, std::pair<GatewayId, Lane>> live;
  std::set<ConnectionId> seen;
  std::vector<Arrival> arrivals;
  std::map<std::pair<GatewayId, Lane>, int> writable;
  bool inside_call = false;  // a call of the wire is going on

 private:
  void check_not_inside() const { EXPECT_FALSE(inside_call) << "called from within a call"; }
};

struct Gateway {
  Recorder recorder;
  Wire* wire = nullptr;

  Result<void> send(std::size_t to, Lane lane, Bytes message, ConnectionId connection = 0) {
    recorder.inside_call = true;
    auto sent = wire->send(world_gateway(to), lane, std::move(message), connection);
    recorder.inside_call = false;
    return sent;
  }
  void reset(std::size_t peer, Lane lane) { reset(peer, lane, recorder.connection(peer, lane)); }
  void reset(std::size_t peer, Lane lane, ConnectionId connection) {
    recorder.inside_call = true;
    wire->reset(world_gateway(peer), lane, connection);
    recorder.inside_call = false;
  }
};

// All gateways started, and every pair up on both lanes.
class Federation {
 public:
  Federation(const WireBackend& backend, std::size_t size)
      : gateways(size), world(backend.make_world(size)) {
    for (std::size_t i = 0; i < size; ++i) start(i);
  }
  void start(std::size_t i) { gateways[i].wire = &world->start(i, gateways[i].recorder); }
  bool wait(const std::function<bool()>& condition) {
    return world->run_until(condition, kWirePatience);
  }
  void run_for(Nanoseconds time) {
    world->run_until([] { return false; }, time);
  }
  bool wait_until_up() {
    return wait([&] {
      for (std::size_t i = 0; i < gateways.size(); ++i)
        for (std::size_t j = 0; j < gateways.size(); ++j)
          if (i != j && !gateways[i].recorder.up(j)) return false;
      return true;
    });
  }

  // Sends `count` messages; after the wire pushes back, when it says that there is room.
  void send_all(std::size_t from, std::size_t to, Lane lane, std::uint64_t first_number,
                std::size_t count, const std::function<std::size_t(std::size_t)>& size) {
    auto& told = gateways[from].recorder.writable[{world_gateway(to), lane}];
    for (std::size_t i = 0; i < count; ++i) {
      bool sent = false;
      int told_before = -1;
      ASSERT_TRUE(wait([&] {
        if (sent || told == told_before) return sent;
        told_before = told;
        const auto result =
            gateways[from].send(to, lane, numbered_message(first_number + i, size(i)));
        if (!result) {
          EXPECT_EQ(result.error().code, ErrorCode::busy) << result.error().text();
        }
        sent = result.has_value();
        return sent;
      })) << "message "
          << i << " found no room";
    }
  }

  std::vector<Gateway> gateways;  // outlive the world
  std::unique_ptr<WireWorld> world;
};

}  // namespace

TEST_P(WireContract, BothEndsLearnOfBothLanes) {
  Federation f(GetParam(), 2);
  ASSERT_TRUE(f.wait_until_up());
  EXPECT_EQ(f.gateways[0].recorder.live.size(), 2U);
  EXPECT_EQ(f.gateways[1].recorder.live.size(), 2U);
  EXPECT_TRUE(f.gateways[0].recorder.arrivals.empty());
  EXPECT_TRUE(f.gateways[1].recorder.arrivals.empty());
}

TEST_P(WireContract, CarriesEverySizeBothWays) {
  Federation f(GetParam(), 2);
  ASSERT_TRUE(f.wait_until_up());
  for (const auto lane : kBothLanes) {
    for (std::size_t from : {0, 1}) {
      auto& receiver = f.gateways[1 - from].recorder;
      for (const std::size_t size :
           {std::size_t{0}, std::size_t{1}, std::size_t{8}, std::size_t{222}, std::size_t{223},
            std::size_t{512}, std::size_t{513}, std::size_t{8191}, bytes_max(lane) - 1,
            bytes_max(lane)}) {
        receiver.arrivals.clear();
        ASSERT_TRUE(f.gateways[from].send(1 - from, lane, numbered_message(size, size)));
        ASSERT_TRUE(f.wait([&] { return !receiver.arrivals.empty(); })) << size;
        const auto& arrival = receiver.arrivals.front();
        EXPECT_EQ(arrival.peer, world_gateway(from));
        EXPECT_EQ(arrival.lane, lane);
        EXPECT_EQ(arrival.connection, receiver.connection(from, lane));
        EXPECT_EQ(arrival.message, numbered_message(size, size));
      }
    }
  }
}

TEST_P(WireContract, RefusesWhatIsTooLarge) {
  Federation f(GetParam(), 2);
  ASSERT_TRUE(f.wait_until_up());
  for (const auto lane : kBothLanes) {
    const auto sent = f.gateways[0].send(1, lane, Bytes(bytes_max(lane) + 1));
    ASSERT_FALSE(sent);
    EXPECT_EQ(sent.error().code, ErrorCode::too_large);
  }
  f.run_for(kMoment);
  EXPECT_TRUE(f.gateways[0].recorder.up(1));
  EXPECT_TRUE(f.gateways[1].recorder.arrivals.empty());
}

TEST_P(WireContract, SaysWhenThereIsNoConnection) {
  Federation f(GetParam(), 2);
  const auto unavailable = [&](std::size_t to, ConnectionId connection) {
    const auto sent = f.gateways[0].send(to, Lane::control, numbered_message(1, 8), connection);
    return !sent && sent.error().code == ErrorCode::unavailable;
  };
  EXPECT_TRUE(unavailable(1, 0));  // not up yet
  ASSERT_TRUE(f.wait_until_up());
  EXPECT_TRUE(unavailable(7, 0));        // nobody
  EXPECT_TRUE(unavailable(1, 1 << 30));  // no such connection
  // A connection of the other lane.
  EXPECT_TRUE(unavailable(1, f.gateways[0].recorder.connection(1, Lane::bulk)));
  EXPECT_FALSE(unavailable(1, f.gateways[0].recorder.connection(1, Lane::control)));
}

TEST_P(WireContract, ThousandsOfMessagesArriveOnceAndWhole) {
  Federation f(GetParam(), 2);
  ASSERT_TRUE(f.wait_until_up());
  constexpr std::size_t kControl = 5000;
  constexpr std::size_t kBulk = 200;
  for (std::size_t from : {0, 1})
    f.send_all(from, 1 - from, Lane::control, 0, kControl,
               [](std::size_t i) { return 8 + i % 300; });
  for (std::size_t from : {0, 1})
    f.send_all(from, 1 - from, Lane::bulk, 0, kBulk,
               [](std::size_t i) { return 8 + (i * 7919) % kBulkMessageBytesMax; });
  for (auto& gateway : f.gateways) {
    auto& arrivals = gateway.recorder.arrivals;
    EXPECT_TRUE(f.wait([&] { return arrivals.size() >= kControl + kBulk; })) << arrivals.size();
    std::map<Lane, std::set<std::uint64_t>> numbers;
    for (const auto& arrival : arrivals)
      EXPECT_TRUE(numbers[arrival.lane].insert(number_of(arrival.message)).second) << "twice";
    EXPECT_EQ(numbers[Lane::control].size(), kControl);
    EXPECT_EQ(numbers[Lane::bulk].size(), kBulk);
  }
}

TEST_P(WireContract, AStoppedReaderPushesBackAndLosesNothing) {
  Federation f(GetParam(), 2);
  ASSERT_TRUE(f.wait_until_up());
  f.world->pause(1);
  // The queues of both ends and of TCP between them hold this much at most.
  constexpr std::size_t kTakenMax = 64;
  std::size_t taken = 0;
  bool busy = false;
  f.world->run_until(
      [&] {
        for (;;) {
          const auto sent =
              f.gateways[0].send(1, Lane::bulk, numbered_message(taken, kBulkMessageBytesMax));
          if (!sent) {
            EXPECT_EQ(sent.error().code, ErrorCode::busy);
            busy = true;
            return false;
          }
          busy = false;
          if (++taken > kTakenMax) return true;
        }
      },
      kSecond);
  EXPECT_TRUE(busy);
  EXPECT_LE(taken, kTakenMax);
  f.gateways[0].recorder.writable.clear();
  // The other lane still has room.
  EXPECT_TRUE(f.gateways[0].send(1, Lane::control, numbered_message(0, 8)));

  f.world->resume(1);
  auto& arrivals = f.gateways[1].recorder.arrivals;
  EXPECT_TRUE(f.wait([&] { return arrivals.size() >= taken + 1; })) << arrivals.size();
  for (const auto& arrival : arrivals) number_of(arrival.message);
  EXPECT_TRUE(f.wait([&] {
    return f.gateways[0].recorder.writable[std::pair(world_gateway(1), Lane::bulk)] > 0;
  }));
  EXPECT_TRUE(f.gateways[0].send(1, Lane::bulk, numbered_message(taken, 8)));
}

TEST_P(WireContract, BulkDoesNotDelayControl) {
  Federation f(GetParam(), 2);
  ASSERT_TRUE(f.wait_until_up());
  f.world->pause(1);
  std::size_t bulk = 0;
  f.world->run_until(
      [&] {
        while (f.gateways[0].send(1, Lane::bulk, numbered_message(bulk, 64 << 10))) ++bulk;
        return false;
      },
      kSecond);
  ASSERT_TRUE(f.gateways[0].send(1, Lane::control, numbered_message(99, 8)));
  f.run_for(kSecond);  // it has come, also where others keep the machine busy
  f.world->resume(1);
  auto& arrivals = f.gateways[1].recorder.arrivals;
  ASSERT_TRUE(f.wait([&] { return arrivals.size() >= bulk + 1; }));
  const auto control = std::ranges::find(arrivals, Lane::control, &Arrival::lane);
  ASSERT_NE(control, arrivals.end());
  EXPECT_LT(control - arrivals.begin(), std::max<std::ptrdiff_t>(arrivals.size() / 2, 2));
}

// Of all connections together, of which each holds something to send.
TEST_P(WireContract, BulkIsNoFasterThanItsLimit) {
  constexpr double kLimit = 1e6;
  constexpr auto kAtLeast = static_cast<Nanoseconds>(2.4e6 / kLimit * 1e9);
  Federation f(GetParam(), 2);
  auto& sender = f.gateways[0];
  const auto& receiver = f.gateways[1];
  const auto connections = [&] {
    std::vector<ConnectionId> all;
    for (const auto& [id, where] : sender.recorder.live)
      if (where.second == Lane::bulk) all.push_back(id);
    return all;
  };
  std::uint64_t sent = 0;
  const auto arrived = [&](std::uint64_t count) {
    for (const auto connection : connections())
      while (sent < count &&
             sender.send(1, Lane::bulk, numbered_message(sent, 100'000), connection))
        ++sent;
    return receiver.recorder.arrivals.size() >= count;
  };
  ASSERT_TRUE(f.wait_until_up());
  for (const std::size_t i : {0, 1}) f.gateways[i].wire->widen(world_gateway(1 - i), 3);
  // Not every simulated wire has several.
  const auto width = f.wait([&] { return connections().size() == 3; }) ? 3U : 1U;
  ASSERT_TRUE(width == 3 || GetParam().name != std::string("zeromq"));
  sender.wire->limit_bulk(kLimit);
  EXPECT_FALSE(f.world->run_until([&] { return arrived(25); }, kAtLeast));
  EXPECT_TRUE(f.wait([&] { return arrived(25); }));

  const auto before = connections().back();
  for (const auto connection : connections()) sender.reset(1, Lane::bulk, connection);
  ASSERT_TRUE(f.wait([&] { return connections().size() == width && connections()[0] > before; }));
  EXPECT_FALSE(f.world->run_until([&] { return arrived(50); }, kAtLeast)) << "new ones too";
  sender.wire->limit_bulk(0);
  EXPECT_TRUE(f.wait([&] { return arrived(60); }));
}

TEST_P(WireContract, WhatWaitsAtALimitLeavesWhenThatGoes) {
  Federation f(GetParam(), 2);
  ASSERT_TRUE(f.wait_until_up());
  auto& sender = *f.gateways[0].wire;
  const auto& arrivals = f.gateways[1].recorder.arrivals;
  sender.limit_bulk(2000);
  f.send_all(0, 1, Lane::control, 0, 1, [](std::size_t) { return 40'000; });  // paid for in 20 s
  f.send_all(0, 1, Lane::bulk, 1, 1, [](std::size_t) { return 10'000; });
  f.run_for(kSecond);
  EXPECT_EQ(arrivals.size(), 1U);
  sender.limit_bulk(0);
  EXPECT_TRUE(f.world->run_until([&] { return arrivals.size() == 2; }, 10 * kSecond));
}

TEST_P(WireContract, BulkLeavesToControlWhatThatTakesOfTheLimit) {
  constexpr double kLimit = 1e6;
  constexpr std::size_t kControl = 30, kControlBytes = 60'000, kBulk = 1;
  Federation f(GetParam(), 2);
  ASSERT_TRUE(f.wait_until_up());
  f.gateways[0].wire->limit_bulk(kLimit);
  f.send_all(0, 1, Lane::control, 0, kControl, [&](std::size_t) { return kControlBytes; });
  f.send_all(0, 1, Lane::bulk, kControl, kBulk, [](std::size_t) { return 10'000; });
  const auto& arrivals = f.gateways[1].recorder.arrivals;
  const auto came = [&](std::size_t count) {
    return [&, count] { return arrivals.size() >= count; };
  };
  EXPECT_TRUE(f.world->run_until(came(kControl), kSecond)) << "control waits for nothing";
  EXPECT_FALSE(f.world->run_until(came(kControl + kBulk), kSecond / 2));
  EXPECT_TRUE(f.wait(came(kControl + kBulk)));
}

TEST_P(WireContract, ThreeGatewaysKeepTheirIdentities) {
  Federation f(GetParam(), 3);
  ASSERT_TRUE(f.wait_until_up());
  for (std::size_t from = 0; from < 3; ++from) {
    for (std::size_t to = 0; to < 3; ++to) {
      if (from == to) continue;
      for (const auto lane : kBothLanes)
        ASSERT_TRUE(f.gateways[from].send(to, lane, numbered_message(100 * from + to, 40)));
    }
  }
  for (std::size_t to = 0; to < 3; ++to) {
    auto& arrivals = f.gateways[to].recorder.arrivals;
    ASSERT_TRUE(f.wait([&] { return arrivals.size() >= 4; }));
    EXPECT_EQ(arrivals.size(), 4U);
    for (const auto& arrival : arrivals)
      EXPECT_EQ(number_of(arrival.message), 100 * (arrival.peer.site - 10) + to);
  }
}

TEST_P(WireContract, APeerThatDiesGoesDownAndComesBack) {
  Federation f(GetParam(), 2);
  ASSERT_TRUE(f.wait_until_up());
  for (std::size_t dead : {0, 1}) {
    auto& left = f.gateways[1 - dead];
    f.world->kill(dead);
    f.gateways[dead].recorder.live.clear();  // it never learns
    ASSERT_TRUE(f.wait([&] { return left.recorder.down(dead); }));
    const auto sent = left.send(dead, Lane::control, numbered_message(1, 8));
    ASSERT_FALSE(sent);
    EXPECT_EQ(sent.error().code, ErrorCode::unavailable);

    f.gateways[dead].recorder = {};
    f.start(dead);
    ASSERT_TRUE(f.wait_until_up());
    for (auto& gateway : f.gateways) gateway.recorder.arrivals.clear();
    ASSERT_TRUE(left.send(dead, Lane::control, numbered_message(2, 8)));
    ASSERT_TRUE(f.gateways[dead].send(1 - dead, Lane::bulk, numbered_message(3, 8)));
    EXPECT_TRUE(f.wait([&] {
      return !f.gateways[0].recorder.arrivals.empty() && !f.gateways[1].recorder.arrivals.empty();
    }));
  }
}

TEST_P(WireContract, ResetReplacesOneConnection) {
  Federation f(GetParam(), 2);
  ASSERT_TRUE(f.wait_until_up());
  for (std::size_t i : {0, 1}) {
    for (const auto lane : kBothLanes) {
      const auto other = lane == Lane::control ? Lane::bulk : Lane::control;
      ConnectionId before[2];
      ConnectionId untouched[2];
      for (std::size_t end : {0, 1}) {
        before[end] = f.gateways[end].recorder.connection(1 - end, lane);
        untouched[end] = f.gateways[end].recorder.connection(1 - end, other);
      }
      f.gateways[i].reset(1 - i, lane);
      EXPECT_FALSE(f.gateways[i].send(1 - i, lane, numbered_message(1, 8), before[i]));
      for (std::size_t end : {0, 1}) {
        auto& recorder = f.gateways[end].recorder;
        EXPECT_TRUE(f.wait([&] {
          return !recorder.live.contains(before[end]) && recorder.connection(1 - end, lane) != 0;
        }));
        EXPECT_EQ(recorder.connection(1 - end, other), untouched[end]);
      }
      for (std::size_t from : {0, 1}) {
        auto& arrivals = f.gateways[1 - from].recorder.arrivals;
        arrivals.clear();
        ASSERT_TRUE(f.gateways[from].send(1 - from, lane, numbered_message(2, 8)));
        EXPECT_TRUE(f.wait([&] { return !arrivals.empty(); }));
      }
    }
  }
}

TEST_P(WireContract, ResetWithoutANumberMeansTheNewestConnection) {
  Federation f(GetParam(), 2);
  f.gateways[0].reset(1, Lane::control, 0);  // none there yet: nothing happens
  ASSERT_TRUE(f.wait_until_up());
  for (std::size_t i : {0, 1}) {
    for (const auto lane : kBothLanes) {
      auto& recorder = f.gateways[i].recorder;
      const auto before = recorder.connection(1 - i, lane);
      f.gateways[i].reset(1 - i, lane, 0);
      EXPECT_FALSE(f.gateways[i].send(1 - i, lane, numbered_message(1, 8), before));
      EXPECT_TRUE(f.wait([&] {
        return !recorder.live.contains(before) && recorder.connection(1 - i, lane) > before;
      }));
      ASSERT_TRUE(f.wait_until_up());
    }
  }
  f.gateways[0].reset(7, Lane::control, 0);  // nobody
}

TEST_P(WireContract, AfterResetNothingOfTheOldConnectionArrives) {
  Federation f(GetParam(), 2);
  ASSERT_TRUE(f.wait_until_up());
  for (std::size_t i : {0, 1}) {
    auto& recorder = f.gateways[i].recorder;
    const auto before = recorder.connection(1 - i, Lane::control);
    for (int n = 0; n < 20; ++n)
      ASSERT_TRUE(f.gateways[1 - i].send(i, Lane::control, numbered_message(1, 8)));
    recorder.arrivals.clear();
    f.gateways[i].reset(1 - i, Lane::control);
    ASSERT_TRUE(f.wait([&] {
      const auto now = recorder.connection(1 - i, Lane::control);
      return now != 0 && now != before;
    }));
    f.run_for(kMoment);
    for (const auto& arrival : recorder.arrivals) EXPECT_NE(arrival.connection, before);
    ASSERT_TRUE(f.wait_until_up());
  }
}

TEST_P(WireContract, AnOldConnectionsNumberMeansNothing) {
  Federation f(GetParam(), 2);
  ASSERT_TRUE(f.wait_until_up());
  const auto before = f.gateways[0].recorder.connection(1, Lane::bulk);
  f.gateways[0].reset(1, Lane::bulk);
  ASSERT_TRUE(f.wait([&] {
    const auto now = f.gateways[0].recorder.connection(1, Lane::bulk);
    return now != 0 && now != before;
  }));
  const auto now = f.gateways[0].recorder.connection(1, Lane::bulk);
  f.gateways[0].wire->reset(world_gateway(1), Lane::bulk, before);
  f.run_for(kMoment);
  EXPECT_EQ(f.gateways[0].recorder.connection(1, Lane::bulk), now);
}

TEST_P(WireContract, CountsBytes) {
  Federation f(GetParam(), 2);
  ASSERT_TRUE(f.wait_until_up());
  auto& sender = f.gateways[0];
  auto& receiver = f.gateways[1];
  const auto sent_before = sender.wire->bytes_sent(world_gateway(1));
  const auto received_before = receiver.wire->bytes_received(world_gateway(0));
  constexpr std::size_t kSize = 100'000;
  constexpr std::size_t kCount = 20;
  f.send_all(0, 1, Lane::bulk, 0, kCount, [](std::size_t) { return kSize; });
  ASSERT_TRUE(f.wait([&] { return receiver.recorder.arrivals.size() == kCount; }));
  std::uint64_t sent = 0;
  // Whoever moves the bytes may count them a moment later.
  EXPECT_TRUE(f.wait([&] {
    sent = sender.wire->bytes_sent(world_gateway(1)) - sent_before;
    return receiver.wire->bytes_received(world_gateway(0)) - received_before == sent;
  }));
  EXPECT_EQ(sent, kCount * sender.wire->bytes_of(Lane::bulk, kSize));
  EXPECT_EQ(sender.wire->bytes_sent(world_gateway(7)), 0U);
  const auto sent_of_control = sender.wire->bytes_sent(world_gateway(1));
  f.send_all(0, 1, Lane::control, 0, kCount, [](std::size_t i) { return 20 * i; });
  std::uint64_t expected = 0;
  for (std::size_t i = 0; i < kCount; ++i) expected += sender.wire->bytes_of(Lane::control, 20 * i);
  EXPECT_TRUE(f.wait(
      [&] { return sender.wire->bytes_sent(world_gateway(1)) - sent_of_control == expected; }));
}

}  // namespace isthmus::inter

// The real wire: the contract of every wire, where it dials and listens, and what a broken
// network does to a connection.
#include "inter/zmq_wire.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/copy_to.h"
#include "inter/socket_check.h"
#include "tests/inter/wire_contract.h"
#include "tests/inter/zmq_pair.h"

namespace isthmus::inter {

INSTANTIATE_TEST_SUITE_P(ZeroMq, WireContract,
                         testing::Values(WireBackend{"zeromq", &make_zmq_world}));

namespace {

// Of this process.
std::size_t tcp_connections_with(std::string_view congestion_control) {
  std::size_t count = 0;
  for (int descriptor = 0; descriptor < 1024; ++descriptor) {
    char name[32] = "";
    socklen_t size = sizeof name;
    sockaddr_storage peer{};
    socklen_t peer_size = sizeof peer;
    if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0 &&
        ::getsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name, &size) == 0)
      count += name == congestion_control ? 1 : 0;
  }
  return count;
}

// Who stands on the way: takes one connection, and answers so many bytes, and so many more.
class OnTheWay {
 public:
  struct Turn {
    std::size_t bytes;
    Bytes answer;
  };
  OnTheWay(std::uint16_t port, std::vector<Turn> turns) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_, 8), 0);
    thread_ = std::thread([this, turns = std::move(turns)] {
      const int connection = ::accept(listener_, nullptr, nullptr);
      if (connection < 0) return;
      for (const auto& turn : turns) {
        Bytes came(turn.bytes);
        if (::recv(connection, came.data(), came.size(), MSG_WAITALL) <= 0) break;
        if (::send(connection, turn.answer.data(), turn.answer.size(), MSG_NOSIGNAL) > 0)
          ++answered_;
      }
      Bytes rest(4096);
      while (::recv(connection, rest.data(), rest.size(), 0) > 0) continue;
      ::close(connection);
    });
  }
  ~OnTheWay() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  int answered() const { return answered_; }

 private:
  int listener_ = -1;
  std::atomic<int> answered_ = 0;
  std::thread thread_;
};

}  // namespace

// ---- Where it dials and listens.

TEST_F(ZmqPair, WithoutAnAddressOnEitherSideThereIsNoConnection) {
  for (std::size_t i : {0, 1}) {
    world_.options(i).listen = "";
    world_.options(i).peers[0].address = "";
    start(i);
  }
  run_for(500 * kMillisecond);
  EXPECT_TRUE(counters_[0].down());
  EXPECT_EQ(world_.count_events(0, "wire_no_address"), 1U);
  EXPECT_EQ(world_.count_events(1, "wire_no_address"), 1U);
}

TEST_F(ZmqPair, TheLowerGatewayDialsWhenItHasNoAddress) {
  world_.options(0).listen = "";
  world_.options(1).peers[0].address = "";
  start_both();
  expect_working();
}

TEST_F(ZmqPair, HostsMayBeNames) {
  const auto port = parse_tcp_address(world_.options(0).listen)->port;
  world_.options(0).listen = fmt::format("*:{}", port);
  world_.options(1).peers[0].address = fmt::format("localhost:{}", port);
  start_both();
  expect_working();
}

TEST_F(ZmqPair, Ipv6Works) {
  const int descriptor = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  const bool there = ::bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  ::close(descriptor);
  if (!there) GTEST_SKIP() << "this machine has no IPv6 loopback";
  const auto port = parse_tcp_address(world_.options(0).listen)->port;
  for (const auto* listen : {"[::1]", "[::]", "*"}) {
    world_.options(0).listen = fmt::format("{}:{}", listen, port);
    world_.options(1).peers[0].address = fmt::format("[::1]:{}", port);
    start_both();
    expect_working();
    for (std::size_t i : {0, 1}) {
      world_.kill(i);
      counters_[i] = {};
    }
  }
}

TEST_F(ZmqPair, RaisesTheLimitOfDescriptorsThatStrangersCouldExhaust) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  if (before.rlim_max <= 512) GTEST_SKIP() << "the hard limit is " << before.rlim_max;
  rlimit low = before;
  low.rlim_cur = 256;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  start(0);
  rlimit after{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_GT(after.rlim_cur, 512U);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST_F(ZmqPair, CongestionControlIsSetAtBothEndsOrSaidToBeMissing) {
  for (std::size_t i : {0, 1}) world_.options(i).congestion_control = "nosuch";
  start_both();
  for (std::size_t i : {0, 1}) EXPECT_EQ(world_.count_events(i, "wire_no_congestion_control"), 1U);
  for (std::size_t i : {0, 1}) {
    world_.kill(i);
    counters_[i] = {};
    world_.options(i).congestion_control = "reno";  // every kernel has it, and lets all use it
  }
  const auto reno_before = tcp_connections_with("reno");
  start_both();
  EXPECT_EQ(tcp_connections_with("reno"), reno_before + 4);  // two lanes, two ends
  for (std::size_t i : {0, 1}) {
    EXPECT_EQ(world_.count_events(i, "wire_no_congestion_control"), 1U);
    EXPECT_EQ(world_.count_events(i, "wire_congestion_control"), 2U) << "once a start";
  }
}

TEST_F(ZmqPair, ATakenPortIsAnError) {
  start(0);
  const auto clock = make_system_clock();
  Loop loop(*clock);
  EventLog log(*clock, "test");
  auto options = world_.options(1);
  options.listen = world_.options(0).listen;
  const auto made = make_zmq_wire(loop, log, options);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::in_use) << made.error().text();
}

TEST_F(ZmqPair, ASecondProcessElsewhereFindsTheFirstAtItsOwnAddress) {
  start(0);
  const auto clock = make_system_clock();
  Loop loop(*clock);
  EventLog log(*clock, "twin");
  auto options = world_.options(0);
  options.listen = fmt::format("127.0.0.1:{}", free_port_pair());
  const auto made = make_zmq_wire(loop, log, options);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::mismatch) << made.error().text();
  EXPECT_EQ(world_.count_events(0, "own_address_not_checked"), 0U);
}

// Before anybody has proven who it is, a refusal is anybody's word.
TEST_F(ZmqPair, NobodyOnTheWayCanSayThatAnotherProcessLives) {
  const auto port = free_port_pair();
  world_.options(0).own_address = fmt::format("127.0.0.1:{}", port);
  // ZMTP 3.1 with CURVE, whose client takes an ERROR for the answer to its HELLO.
  Bytes greeting(64);
  greeting[0] = std::byte{0xff};
  greeting[9] = std::byte{0x7f};
  greeting[10] = std::byte{3};
  greeting[11] = std::byte{1};
  copy_to(bytes_of(std::string_view("CURVE")), greeting.begin() + 12);
  greeting[32] = std::byte{1};
  const auto as_bytes = [](std::string_view text) {
    const auto bytes = bytes_of(text);
    return Bytes(bytes.begin(), bytes.end());
  };
  OnTheWay control(port, {{64, greeting},
                          {202, as_bytes("\x04\x0a\x05"
                                         "ERROR"
                                         "\x03"
                                         "400")}});
  // An alert, bad_certificate, in the place of TLS's first answer.
  OnTheWay bulk(static_cast<std::uint16_t>(port + 1),
                {{1, as_bytes(std::string_view("\x15\x03\x03\x00\x02\x02\x2a", 7))}});
  start_both();
  expect_working();
  EXPECT_EQ(bulk.answered(), 1);
  EXPECT_EQ(world_.count_events(0, "own_address_not_checked"), 1U);
}

TEST_F(ZmqPair, AnAddressThatDoesNotLeadBackIsNoFault) {
  world_.options(0).own_address = fmt::format("127.0.0.1:{}", free_port_pair());
  start_both();
  expect_working();
  EXPECT_EQ(world_.count_events(0, "own_address_not_checked"), 1U);
}

// ---- What the network does.

TEST_F(ZmqPair, TheListenerMayComeLater) {
  start(1);
  run_for(kSecond);
  start(0);
  EXPECT_TRUE(wait([&] { return counters_[0].up() && counters_[1].up(); }, 6 * kSecond));
  expect_working();
}

// Its own delay has become longer than that meanwhile.
TEST_F(ZmqPair, BulkIsDialedAsSoonAsControlIsUp) {
  use_proxies();
  const auto bulk =
      static_cast<std::uint16_t>(parse_tcp_address(world_.options(1).peers[0].address)->port + 1);
  proxies_.pop_back();
  start(0);
  start(1);
  // Refused at once, and then after 0.2, 0.4, 0.8 and 1.6 s.
  run_for(3600 * kMillisecond);
  ASSERT_FALSE(counters_[1].live[Lane::control].empty());
  ASSERT_TRUE(counters_[1].live[Lane::bulk].empty());
  proxies_.push_back(std::make_unique<TcpProxy>(
      bulk, static_cast<std::uint16_t>(parse_tcp_address(world_.options(0).listen)->port + 1)));
  proxies_[0]->cut();
  ASSERT_TRUE(wait([&] { return counters_[1].downs[Lane::control] > 0; }));
  EXPECT_TRUE(wait([&] { return counters_[0].up() && counters_[1].up(); }, 1500 * kMillisecond));
}

TEST_F(ZmqPair, ACutConnectionComesBack) {
  use_proxies();
  start_both();
  for (int i = 0; i < 3; ++i) {
    for (auto& proxy : proxies_) proxy->cut();
    EXPECT_TRUE(wait([&] {
      return counters_[0].downs[Lane::control] > i && counters_[1].downs[Lane::bulk] > i;
    }));
    EXPECT_TRUE(wait_until_up());
    expect_working();
  }
}

TEST_F(ZmqPair, AFlippedBitEndsTheConnectionAndNothingElse) {
  use_proxies();
  world_.options(1).redial_delay_max = 300 * kMillisecond;
  start_both();
  const std::int64_t places[] = {20, 300, 700000};
  for (const auto direction : {Direction::to_listener, Direction::to_dialer}) {
    for (const auto place : places) {
      auto& proxy = *proxies_[static_cast<std::size_t>(Lane::bulk)];
      const std::size_t from = direction == Direction::to_listener ? 1 : 0;
      const int downs = counters_[1 - from].downs[Lane::bulk];
      const int downs_other = counters_[from].downs[Lane::bulk];
      proxy.flip_bit(direction, place);
      (void)wires_[from]->send(world_gateway(1 - from), Lane::bulk,
                               message_of(kBulkMessageBytesMax));
      EXPECT_TRUE(wait([&] {
        return proxy.flipped(direction) && counters_[1 - from].downs[Lane::bulk] > downs &&
               counters_[from].downs[Lane::bulk] > downs_other;
      })) << place;
      EXPECT_TRUE(wait_until_up()) << place;
      expect_working();
    }
  }
  for (const auto& counter : counters_) {
    EXPECT_EQ(counter.damaged, 0U);
    EXPECT_EQ(counter.downs.count(Lane::control), 0U);
  }
}

TEST_F(ZmqPairQuick, SilenceIsNoticedAtBothEndsAlsoAfterALongIdleTime) {
  use_proxies();
  start_both();
  run_for(3 * kSecond);  // heartbeats keep an idle connection, and keep being sent
  EXPECT_EQ(counters_[0].downs[Lane::control], 0);
  EXPECT_EQ(counters_[1].downs[Lane::control], 0);
  for (auto& proxy : proxies_) proxy->stall(true);
  EXPECT_TRUE(wait(
      [&] {
        return counters_[0].live[Lane::control].empty() && counters_[1].live[Lane::control].empty();
      },
      4 * kSecond));
  run_for(3 * kSecond);
  for (auto& proxy : proxies_) proxy->stall(false);
  EXPECT_TRUE(wait([&] { return counters_[0].up() && counters_[1].up(); }, 3 * kSecond));
}

// As on a line that has become slow, with a queue of many seconds: control waits behind chunks.
TEST_F(ZmqPairQuick, ControlMayBeSilentForLongerWhileBulkComes) {
  for (std::size_t i : {0, 1}) world_.options(i).control_timeout_beside_bulk = 6 * kSecond;
  use_proxies();
  start_both();
  std::size_t bytes = 1000;
  const auto run = [&](Nanoseconds time) {
    constexpr auto kTurn = 100 * kMillisecond;
    for (Nanoseconds passed = 0; passed < time; passed += kTurn) {
      for (std::size_t from : {0, 1})
        (void)wires_[from]->send(world_gateway(1 - from), Lane::bulk, message_of(bytes));
      run_for(kTurn);
    }
  };
  const auto control_ends = [&] {
    return counters_[0].downs[Lane::control] + counters_[1].downs[Lane::control];
  };
  auto& control = *proxies_[static_cast<std::size_t>(Lane::control)];
  control.stall(true);
  run(4 * kSecond);
  EXPECT_EQ(control_ends(), 0);
  control.stall(false);
  run(kSecond);
  expect_working();
  // Not for ever.
  control.stall(true);
  run(7 * kSecond);
  EXPECT_EQ(control_ends(), 2);
  control.stall(false);
  ASSERT_TRUE(wait_until_up());
  // And not where no more comes than an idle link says.
  bytes = 10;
  run(7 * kSecond);
  control.stall(true);
  run(2500 * kMillisecond);
  EXPECT_EQ(control_ends(), 4);
}

TEST_F(ZmqPairQuick, ADialThatMeetsSilenceIsGivenUpAndTriedAgain) {
  use_proxies();
  for (auto& proxy : proxies_) proxy->stall(true);
  start(0);
  start(1);
  run_for(4 * kSecond);
  EXPECT_TRUE(counters_[1].down());
  for (auto& proxy : proxies_) proxy->stall(false);
  EXPECT_TRUE(wait([&] { return counters_[0].up() && counters_[1].up(); }, 3 * kSecond));
  expect_working();
}

// A chunk takes far longer than the control lane's timeout, and nobody takes that for silence.
TEST_F(ZmqPairQuick, ASlowLinkIsNotADeadOne) {
  use_proxies();
  start_both();
  proxies_[1]->limit_rate(400'000);
  std::size_t taken = 0;
  while (wires_[1]->send(world_gateway(0), Lane::bulk, message_of(kBulkMessageBytesMax))) ++taken;
  ASSERT_GE(taken, 2U);
  EXPECT_TRUE(wait([&] { return counters_[0].messages >= 2; }, 20 * kSecond));
  for (auto& counter : counters_) {
    EXPECT_EQ(counter.downs[Lane::control], 0);
    EXPECT_EQ(counter.downs[Lane::bulk], 0);
  }
  EXPECT_EQ(counters_[0].damaged, 0U);
}

TEST_F(ZmqPair, BytesAreCountedAsTheyPass) {
  use_proxies();
  start_both();
  const std::size_t sizes[] = {0, 1, 222, 223, 5000, kControlMessageBytesMax};
  for (const auto size : sizes)
    ASSERT_TRUE(wires_[1]->send(world_gateway(0), Lane::control, message_of(size)));
  ASSERT_TRUE(wires_[1]->send(world_gateway(0), Lane::bulk, message_of(kBulkMessageBytesMax)));
  ASSERT_TRUE(wait([&] { return counters_[0].messages == std::size(sizes) + 1; }));
  const auto passed = [&](Direction direction) {
    return proxies_[0]->bytes(direction) + proxies_[1]->bytes(direction);
  };
  // Heartbeats, which are not counted, fall due every two seconds.
  constexpr std::uint64_t kHeartbeats = 6 * 42;
  const auto up = passed(Direction::to_listener);
  EXPECT_LE(wires_[1]->bytes_sent(world_gateway(0)), up);
  EXPECT_GE(wires_[1]->bytes_sent(world_gateway(0)) + kHeartbeats, up);
  EXPECT_EQ(wires_[0]->bytes_received(world_gateway(1)), wires_[1]->bytes_sent(world_gateway(0)));
  const auto down = passed(Direction::to_dialer);
  EXPECT_LE(wires_[0]->bytes_sent(world_gateway(1)), down);
  EXPECT_GE(wires_[0]->bytes_sent(world_gateway(1)) + kHeartbeats, down);
}

}  // namespace isthmus::inter

// What only ZeroMQ can do wrong: each trap of libzmq that the wire avoids, once; and what a hostile
// or broken network does to a connection.
#include "inter/zmq_wire.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <set>
#include <thread>

#include "inter/socket_check.h"
#include "inter/tcp_address.h"
#include "inter/zap_handler.h"
#include "inter/zmq_socket.h"
#include "tests/inter/free_ports.h"
#include "tests/inter/tcp_proxy.h"
#include "tests/inter/wire_contract.h"
#include "tests/inter/zmq_world.h"

namespace isthmus::inter {

INSTANTIATE_TEST_SUITE_P(ZeroMq, WireContract,
                         testing::Values(WireBackend{"zeromq", &make_zmq_world}));

namespace {

constexpr std::array kLanes{Lane::control, Lane::bulk};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

class Counter final : public WireReceiver {
 public:
  void on_message(GatewayId, Lane lane, ConnectionId, std::span<const std::byte> message) override {
    ++messages;
    last = Bytes(message.begin(), message.end());
    whole += message.size() == kBulkMessageBytesMax || lane == Lane::control ? 1 : 0;
    for (const auto b : message) damaged += b != std::byte{0x5a} ? 1 : 0;
  }
  void on_up(GatewayId, Lane lane, ConnectionId id) override { live[lane].insert(id); }
  void on_down(GatewayId, Lane lane, ConnectionId id) override {
    live[lane].erase(id);
    ++downs[lane];
  }
  void on_writable(GatewayId, Lane) override {}

  bool up() { return !live[Lane::control].empty() && !live[Lane::bulk].empty(); }
  bool down() { return live[Lane::control].empty() && live[Lane::bulk].empty(); }

  std::map<Lane, std::set<ConnectionId>> live;
  std::map<Lane, int> downs;
  std::size_t messages = 0;
  std::size_t whole = 0;
  std::size_t damaged = 0;  // bytes that are not 0x5a
  Bytes last;
};

Bytes message_of(std::size_t size) { return Bytes(size, std::byte{0x5a}); }

// Gateway 0 listens, gateway 1 dials it; with a proxy for each lane in between when asked for.
class ZmqPair : public testing::Test {
 protected:
  void use_proxies() {
    const auto port = free_port_pair();
    const auto target = parse_tcp_address(world_.options(0).listen)->port;
    for (std::uint16_t lane : {0, 1})
      proxies_.push_back(std::make_unique<TcpProxy>(static_cast<std::uint16_t>(port + lane),
                                                    static_cast<std::uint16_t>(target + lane)));
    world_.options(1).peers[0].address = fmt::format("127.0.0.1:{}", port);
  }
  void start(std::size_t i) { wires_[i] = &world_.start(i, counters_[i]); }
  void start_both() {
    start(0);
    start(1);
    ASSERT_TRUE(wait_until_up());
  }
  bool wait(const std::function<bool()>& condition, Nanoseconds at_most = 10 * kSecond) {
    return world_.run_until(condition, at_most);
  }
  bool wait_until_up() {
    return wait([&] { return counters_[0].up() && counters_[1].up(); });
  }
  void run_for(Nanoseconds time) {
    wait([] { return false; }, time);
  }
  std::string endpoint(Lane lane) {
    return lane_address(*parse_tcp_address(world_.options(0).listen), lane).endpoint();
  }
  // Both lanes carry a message each way.
  void expect_working() {
    for (std::size_t from : {0, 1}) {
      for (const auto lane : kLanes) {
        counters_[1 - from].messages = 0;
        ASSERT_TRUE(wires_[from]->send(world_gateway(1 - from), lane, message_of(1000)));
        EXPECT_TRUE(wait([&] { return counters_[1 - from].messages > 0; }));
      }
    }
  }

  Counter counters_[2];
  ZmqWorld world_{2};
  Wire* wires_[2] = {};
  std::vector<std::unique_ptr<TcpProxy>> proxies_;
};

// A program of somebody's with a key that is listed.
struct RawClient {
  RawClient(const std::string& endpoint, const security::CurveKey& server, const CurveKeyPair& key,
            std::string_view routing_id = {})
      : context(*ZmqContext::make(1, 16)), socket(*ZmqSocket::open(*context, ZMQ_DEALER)) {
    EXPECT_TRUE(use_curve_client(socket, server, key.public_key, key.secret_key));
    EXPECT_TRUE(socket.set(ZMQ_RECONNECT_IVL, -1));
    if (!routing_id.empty()) {
      EXPECT_TRUE(socket.set(ZMQ_ROUTING_ID, routing_id));
    }
    monitor = *SocketMonitor::make(*context, socket, ZMQ_EVENT_ALL);
    EXPECT_TRUE(socket.connect(endpoint));
  }
  ~RawClient() {
    monitor.close();
    socket.close();
  }
  void send(std::initializer_list<std::size_t> parts) {
    std::size_t left = parts.size();
    for (const auto size : parts) {
      ZmqMessage part(message_of(size));
      EXPECT_EQ(socket.send(part, --left > 0), 0);
    }
  }
  bool saw(int wanted) {
    while (const auto event = monitor.next()) events.insert(event->event);
    return events.contains(wanted);
  }
  std::unique_ptr<ZmqContext> context;
  ZmqSocket socket;
  SocketMonitor monitor;
  std::set<int> events;
};

int connect_tcp(std::uint16_t port) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  EXPECT_EQ(::connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return descriptor;
}

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

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

// ---- Who gets in.

TEST_F(ZmqPair, StrangersAreRefusedOnBothLanes) {
  start_both();
  const auto stranger = make_curve_key_pair();
  const auto& server = world_.key(0).public_key;
  for (const auto lane : kLanes) {
    EXPECT_EQ(*probe_socket(endpoint(lane), ProbeAs::curve, server, stranger, 2 * kSecond),
              ProbeOutcome::refused_key);
    for (const auto mechanism : {ProbeAs::null, ProbeAs::plain}) {
      const auto outcome = *probe_socket(endpoint(lane), mechanism, server, {}, 2 * kSecond);
      EXPECT_TRUE(outcome == ProbeOutcome::refused_protocol || outcome == ProbeOutcome::closed)
          << to_string(outcome);
    }
    // The right client, who takes the gateway for another.
    EXPECT_EQ(*probe_socket(endpoint(lane), ProbeAs::curve, stranger.public_key, world_.key(1),
                            2 * kSecond),
              ProbeOutcome::closed);
  }
  EXPECT_GE(world_.count_events(0, "wire_key_refused"), 1U);
  EXPECT_TRUE(wait([&] { return world_.count_events(0, "wire_stranger") > 0; }));
  EXPECT_EQ(counters_[0].messages, 0U);
  expect_working();
}

TEST_F(ZmqPair, TheZapHandlerAnswersWhileTheLoopIsBusy) {
  start_both();
  // Nobody runs the loops during a probe.
  EXPECT_EQ(*probe_socket(endpoint(Lane::control), ProbeAs::curve, world_.key(0).public_key,
                          world_.key(1), 2 * kSecond),
            ProbeOutcome::accepted);
}

TEST_F(ZmqPair, AWrongServerKeyIsNoGatewayAndIsTriedAgain) {
  const auto right = world_.options(1).peers[0].key;
  world_.options(1).peers[0].key = make_curve_key_pair().public_key;
  start(0);
  start(1);
  EXPECT_FALSE(wait([&] { return !counters_[1].down() || !counters_[0].down(); }, 2 * kSecond));
  EXPECT_EQ(world_.count_events(1, "wire_unreachable"), 2U);  // once a lane, not once an attempt
  world_.kill(1);
  world_.options(1).peers[0].key = right;
  start(1);
  EXPECT_TRUE(wait_until_up());
}

TEST_F(ZmqPair, ASelfChosenRoutingIdIsRefused) {
  start(0);
  RawClient client(endpoint(Lane::control), world_.key(0).public_key, world_.key(1), "gateway 1");
  client.send({8});
  EXPECT_TRUE(wait([&] { return client.saw(ZMQ_EVENT_DISCONNECTED); }));
  EXPECT_TRUE(counters_[0].down());
  EXPECT_EQ(counters_[0].messages, 0U);
  EXPECT_EQ(world_.count_events(0, "wire_peer_refused"), 1U);
  start(1);
  EXPECT_TRUE(wait_until_up());
  expect_working();
}

TEST_F(ZmqPair, TwoProcessesWithOneKeyAreTwoConnections) {
  start_both();
  RawClient twin(endpoint(Lane::control), world_.key(0).public_key, world_.key(1));
  twin.send({8});
  EXPECT_TRUE(wait([&] { return counters_[0].live[Lane::control].size() == 2; }));
  // Both live, and each can be answered; the newest one by default.
  const auto older = *counters_[0].live[Lane::control].begin();
  ASSERT_TRUE(wires_[0]->send(world_gateway(1), Lane::control, message_of(8), older));
  EXPECT_TRUE(wait([&] { return counters_[1].messages == 1; }));
  ASSERT_TRUE(wires_[0]->send(world_gateway(1), Lane::control, message_of(8)));
  ZmqMessage answer;
  EXPECT_TRUE(wait([&] { return twin.socket.receive(answer); }));
  EXPECT_EQ(counters_[1].messages, 1U);
}

TEST_F(ZmqPair, EverMoreConnectionsEndTheOldestOnes) {
  start(0);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (std::size_t i = 0; i < 12; ++i) {
    clients.push_back(std::make_unique<RawClient>(endpoint(Lane::control), world_.key(0).public_key,
                                                  world_.key(1)));
    clients.back()->send({8});
    ASSERT_TRUE(wait([&] { return counters_[0].messages == i + 1; }));
  }
  EXPECT_TRUE(wait([&] { return clients[3]->saw(ZMQ_EVENT_DISCONNECTED); }));
  EXPECT_TRUE(wait([&] { return counters_[0].live[Lane::control].size() == 8; }));
  EXPECT_FALSE(clients[4]->saw(ZMQ_EVENT_DISCONNECTED));
}

TEST_F(ZmqPair, WhatNoGatewaySendsEndsTheConnection) {
  start(0);
  const std::initializer_list<std::size_t> violations[] = {
      {8, 8}, {0, 0, 0}, {0, 8}, {kControlMessageBytesMax + 1}};
  for (const auto& violation : violations) {
    RawClient client(endpoint(Lane::control), world_.key(0).public_key, world_.key(1));
    client.send({0, 0});  // the greeting
    ASSERT_TRUE(wait([&] { return !counters_[0].live[Lane::control].empty(); }));
    client.send(violation);
    EXPECT_TRUE(wait([&] { return client.saw(ZMQ_EVENT_DISCONNECTED); }));
    EXPECT_TRUE(wait([&] { return counters_[0].live[Lane::control].empty(); }));
    EXPECT_EQ(counters_[0].messages, 0U);
  }
}

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
  for (std::size_t i : {0, 1}) EXPECT_EQ(world_.count_events(i, "wire_no_congestion_control"), 1U);
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

TEST_F(ZmqPair, AnAddressThatDoesNotLeadBackIsNoFault) {
  world_.options(0).own_address = fmt::format("127.0.0.1:{}", free_port_pair());
  start_both();
  expect_working();
  EXPECT_EQ(world_.count_events(0, "own_address_not_checked"), 1U);
}

// ---- What strangers can cost.

TEST_F(ZmqPair, AHugeFrameBeforeTheHandshakeTakesNoMemory) {
  start_both();
  const auto port = parse_tcp_address(world_.options(0).listen)->port;
  const auto before = resident_bytes();
  for (int attempt = 0; attempt < 8; ++attempt) {
    const int stranger = connect_tcp(port);
    // ZMTP 3.0 greeting of a CURVE client; then the header of a command of 1 GiB, and its body.
    Bytes start(64, std::byte{0});
    start[0] = std::byte{0xff};
    start[8] = std::byte{0x01};
    start[9] = std::byte{0x7f};
    start[10] = std::byte{3};
    std::memcpy(start.data() + 12, "CURVE", 5);
    start.push_back(std::byte{0x06});
    for (const unsigned b : {0U, 0U, 0U, 0U, 0x40U, 0U, 0U, 0U}) start.push_back(std::byte(b));
    ASSERT_EQ(::send(stranger, start.data(), start.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(start.size()));
    const Bytes body(1 << 16);
    bool closed = false;
    for (int i = 0; i < 1024 && !closed; ++i) {
      closed = ::send(stranger, body.data(), body.size(), MSG_NOSIGNAL) < 0;
      if (i % 64 == 0) run_for(kMillisecond);
    }
    EXPECT_TRUE(closed);
    ::close(stranger);
  }
  if (!kSanitized) {
    EXPECT_LT(resident_bytes(), before + (4 << 20));
  }
  expect_working();
}

// Nobody is called a stranger who is none: what a gateway tries on itself, and its peers.
TEST_F(ZmqPair, AHealthyStartSpeaksOfNoStranger) {
  start_both();
  run_for(500 * kMillisecond);
  for (const int site : {0, 1}) {
    EXPECT_EQ(world_.count_events(site, "wire_stranger"), 0U) << site;
    EXPECT_EQ(world_.count_events(site, "wire_key_refused"), 0U) << site;
  }
  // One that shows a wrong key is told of once.
  for (const auto lane : kLanes)
    EXPECT_EQ(*probe_socket(endpoint(lane), ProbeAs::curve, world_.key(0).public_key,
                            make_curve_key_pair(), 2 * kSecond),
              ProbeOutcome::refused_key);
  EXPECT_TRUE(wait([&] { return world_.count_events(0, "wire_key_refused") == 1; }));
  run_for(500 * kMillisecond);
  EXPECT_EQ(world_.count_events(0, "wire_stranger"), 0U);
  // And one that shows none, as before.
  for (int i = 0; i < 3; ++i)
    (void)probe_socket(endpoint(Lane::control), ProbeAs::null, {}, {}, 2 * kSecond);
  EXPECT_TRUE(wait([&] { return world_.count_events(0, "wire_stranger") == 1; }));
}

TEST_F(ZmqPair, SilentStrangersAreThrownOutAndListedGatewaysServed) {
  world_.options(0).handshake_timeout = 500 * kMillisecond;
  start(0);
  const auto port = parse_tcp_address(world_.options(0).listen)->port;
  std::vector<int> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(connect_tcp(port));
  start(1);
  EXPECT_TRUE(wait_until_up());
  run_for(kSecond);
  for (const int stranger : strangers) {
    // The greeting, then the end.
    char bytes[256];
    ssize_t got = 0;
    while ((got = ::recv(stranger, bytes, sizeof bytes, MSG_DONTWAIT)) > 0) {
    }
    EXPECT_TRUE(got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK));
    ::close(stranger);
  }
  // Said, but not three hundred times.
  EXPECT_GE(world_.count_events(0, "wire_stranger"), 1U);
  EXPECT_LT(world_.count_events(0, "wire_stranger"), 10U);
  expect_working();
}

TEST_F(ZmqPair, AStoppedReaderCostsTheSenderLittle) {
  start_both();
  world_.pause(1);
  const auto before = resident_bytes();
  wait(
      [&] {
        while (wires_[0]->send(world_gateway(1), Lane::bulk, message_of(kBulkMessageBytesMax))) {
        }
        return false;
      },
      kSecond);
  // Both ends live in this process: two queues, and what TCP buffers is not ours.
  if (!kSanitized) {
    EXPECT_LT(resident_bytes(), before + (32 << 20));
  }
}

// ---- What the network does.

TEST_F(ZmqPair, TheListenerMayComeLater) {
  start(1);
  run_for(kSecond);
  start(0);
  EXPECT_TRUE(wait([&] { return counters_[0].up() && counters_[1].up(); }, 6 * kSecond));
  expect_working();
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

// CURVE notices at either end; a dialing socket of libzmq would then never dial again.
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

class ZmqPairQuick : public ZmqPair {
 protected:
  // The same rules in a fraction of the time.
  void SetUp() override {
    for (std::size_t i : {0, 1}) {
      auto& options = world_.options(i);
      options.heartbeat_interval = 200 * kMillisecond;
      options.control_timeout = 1500 * kMillisecond;
      options.handshake_timeout = 500 * kMillisecond;
      options.dial_timeout = kSecond;
    }
  }
};

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

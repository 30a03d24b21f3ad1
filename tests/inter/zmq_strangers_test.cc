// What strangers on the network can reach and cost on the control lane: each trap of libzmq that
// the wire avoids, once. The bulk lane: bulk_strangers_test.cc.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <deque>
#include <set>
#include <thread>

#include "inter/socket_check.h"
#include "inter/zap_handler.h"
#include "inter/zmq_socket.h"
#include "inter/zmq_wire.h"
#include "tests/inter/zmq_pair.h"

namespace isthmus::inter {
namespace {

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

}  // namespace

// ---- Who gets in.

TEST_F(ZmqPair, StrangersAreRefused) {
  start_both();
  const auto stranger = make_curve_key_pair();
  const auto& server = world_.key(0).public_key;
  EXPECT_EQ(*probe_socket(endpoint(Lane::control), ProbeAs::curve, server, stranger, 2 * kSecond),
            ProbeOutcome::refused_key);
  for (const auto mechanism : {ProbeAs::null, ProbeAs::plain}) {
    const auto outcome = *probe_socket(endpoint(Lane::control), mechanism, server, {}, 2 * kSecond);
    EXPECT_TRUE(outcome == ProbeOutcome::refused_protocol || outcome == ProbeOutcome::closed)
        << to_string(outcome);
  }
  // The right client, who takes the gateway for another.
  EXPECT_EQ(*probe_socket(endpoint(Lane::control), ProbeAs::curve, stranger.public_key,
                          world_.key(1), 2 * kSecond),
            ProbeOutcome::closed);
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
  auto& peer = world_.options(1).peers[0];
  const auto right = peer;
  peer.key = make_curve_key_pair().public_key;
  peer.identity = security::SigningKey::generate().public_key();
  start(0);
  start(1);
  EXPECT_FALSE(wait([&] { return !counters_[1].down() || !counters_[0].down(); }, 2 * kSecond));
  // Once, not once a lane and attempt.
  EXPECT_EQ(world_.count_events(1, "wire_unreachable"), 1U);
  world_.kill(1);
  peer = right;
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

// What libzmq has read it keeps for as long as nobody takes it.
TEST_F(ZmqPair, MoreAtOnceThanAGatewaySendsEndsTheConnection) {
  start(0);
  RawClient client(endpoint(Lane::control), world_.key(0).public_key, world_.key(1));
  client.send({0, 0});  // the greeting
  ASSERT_TRUE(wait([&] { return !counters_[0].live[Lane::control].empty(); }));
  const auto send_at_once = [&](std::size_t messages) {
    for (std::size_t i = 0; i < messages; ++i) client.send({kControlMessageBytesMax});
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // while no loop runs
  };
  constexpr std::size_t kUnacknowledged = (8 << 20) / kControlMessageBytesMax;  // LinkOptions
  send_at_once(kUnacknowledged);
  EXPECT_TRUE(wait([&] { return counters_[0].messages == kUnacknowledged; }));
  EXPECT_FALSE(client.saw(ZMQ_EVENT_DISCONNECTED));
  send_at_once(3 * kUnacknowledged);
  EXPECT_TRUE(wait([&] { return client.saw(ZMQ_EVENT_DISCONNECTED); }));
  EXPECT_TRUE(wait([&] { return counters_[0].live[Lane::control].empty(); }));
  EXPECT_EQ(world_.count_events(0, "wire_violation"), 1U);
  start(1);
  EXPECT_TRUE(wait_until_up());
}

// libzmq hands over no part of a message before it has the last.
class EndlessMessage : public ZmqPair, public testing::WithParamInterface<bool> {};

TEST_P(EndlessMessage, EndsTheConnection) {
  const bool greets = GetParam();
  const auto where = endpoint(Lane::control);
  const auto server = world_.key(0).public_key;
  const auto key = world_.key(1);
  std::array<int, 2> started{};
  ASSERT_EQ(::pipe(started.data()), 0);
  const pid_t child = ::fork();  // whose memory is not this one's
  if (child == 0) {
    char byte = 0;
    if (::read(started[0], &byte, 1) != 1) ::_exit(1);
    RawClient client(where, server, key);
    if (greets) client.send({0, 0});
    for (int i = 0; i < 12'000; ++i) {
      ZmqMessage part(message_of(kControlMessageBytesMax));
      if (client.socket.send(part, true) != 0) ::_exit(1);
    }
    client.send({1});  // now libzmq begins to send it
    ::sleep(60);
    ::_exit(0);
  }
  const auto before = resident_bytes();
  start(0);
  EXPECT_EQ(::write(started[1], "", 1), 1);
  EXPECT_TRUE(wait([&] { return !greets || !counters_[0].live[Lane::control].empty(); }));
  const auto* const event = greets ? "wire_violation" : "wire_stranger";
  std::size_t most = before;
  EXPECT_TRUE(wait([&] {
    most = std::max(most, resident_bytes());
    return world_.count_events(0, event) == 1;
  }));
  EXPECT_TRUE(wait([&] { return counters_[0].live[Lane::control].empty(); }));
  // All of it would be 750 MiB.
  if (!kSanitized) {
    EXPECT_LT(most, before + (400 << 20));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  for (const int end : started) ::close(end);
}

INSTANTIATE_TEST_SUITE_P(Greeting, EndlessMessage, testing::Bool());

// Who is up is told something at once, as a session that stands does.
class Greeter final : public Counter {
 public:
  void on_up(GatewayId peer, Lane lane, ConnectionId id) override {
    Counter::on_up(peer, lane, id);
    if (lane == Lane::control) (void)wire->send(peer, lane, message_of(100), id);
  }
  Wire* wire = nullptr;
};

// All of it has come before a late loop hears of the connection.
TEST_F(ZmqPair, AnEndlessMessageOfWhoIsDialedEndsTheConnectionAlsoWhereTheLoopIsLate) {
  const auto where = endpoint(Lane::control);
  const auto key = world_.key(0);
  std::array<int, 2> accepted{};
  ASSERT_EQ(::pipe2(accepted.data(), O_NONBLOCK), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto context = *ZmqContext::make(1, 16);
    auto socket = *ZmqSocket::open(*context, ZMQ_DEALER);
    (void)socket.set(ZMQ_CURVE_SERVER, 1);
    (void)socket.set(ZMQ_CURVE_SECRETKEY,
                     std::string_view(reinterpret_cast<const char*>(key.secret_key.data()),
                                      key.secret_key.size()));
    (void)socket.set(ZMQ_SNDHWM, 0);
    auto monitor = *SocketMonitor::make(*context, socket, ZMQ_EVENT_ACCEPTED);
    if (!socket.bind(where)) ::_exit(1);
    while (!monitor.next()) ::usleep(100);
    (void)!::write(accepted[1], "", 1);
    for (int i = 0; i < 1200; ++i) {
      ZmqMessage part(message_of(kControlMessageBytesMax));
      while (socket.send(part, true) != 0) ::usleep(100);
    }
    ZmqMessage last(message_of(1));
    socket.send(last);
    ::sleep(60);
    ::_exit(0);
  }
  Greeter greeter;
  greeter.wire = &world_.start(1, greeter);
  EXPECT_TRUE(wait([&] {
    char byte = 0;
    return ::read(accepted[0], &byte, 1) == 1;
  }));
  std::this_thread::sleep_for(std::chrono::seconds(2));
  EXPECT_TRUE(wait([&] { return world_.count_events(1, "wire_violation") > 0; }));
  run_for(kSecond / 2);
  EXPECT_EQ(
      greeter.live[Lane::control].size() + static_cast<std::size_t>(greeter.downs[Lane::control]),
      world_.count_events(1, "wire_up"));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(wait([&] { return greeter.live[Lane::control].empty(); }));
  for (const int end : accepted) ::close(end);
}

// Each of so many connections has so many bytes, less than one may have.
class ManyEndlessMessages : public ZmqPair,
                            public testing::WithParamInterface<std::pair<int, std::uint64_t>> {};

TEST_P(ManyEndlessMessages, EndConnectionsUntilTheRestIsFew) {
  const auto server = world_.key(0).public_key;
  const auto key = world_.key(1);
  const auto [connections, each] = GetParam();
  const auto all = static_cast<std::uint64_t>(connections) * each;
  world_.options(0).dial_timeout = 3 * kPatience;  // not for want of a greeting
  std::array<int, 2> started{};
  ASSERT_EQ(::pipe(started.data()), 0);
  // Before there are threads, of which one may hold a sanitizer's lock that the child then misses.
  const pid_t child = ::fork();
  if (child == 0) {
    std::uint16_t port = 0;
    if (::read(started[0], &port, sizeof port) != sizeof port) ::_exit(1);
    const auto where = fmt::format("tcp://127.0.0.1:{}", port);
    rlimit descriptors{};
    ::getrlimit(RLIMIT_NOFILE, &descriptors);
    descriptors.rlim_cur = descriptors.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &descriptors);
    std::deque<RawClient> clients;
    for (int i = 0; i < connections; ++i) {
      auto& client = clients.emplace_back(where, server, key);
      for (std::uint64_t bytes = 0; bytes < 3 * each / 2; bytes += kControlMessageBytesMax) {
        ZmqMessage part(message_of(kControlMessageBytesMax));
        if (client.socket.send(part, true) != 0) ::_exit(2);
      }
    }
    for (auto& client : clients) client.send({1});
    ::sleep(60);
    ::_exit(0);
  }
  use_proxies();
  auto& control = *proxies_[static_cast<std::size_t>(Lane::control)];
  control.hold_after(static_cast<std::int64_t>(each));
  start(0);
  const auto port = parse_tcp_address(world_.options(1).peers[0].address)->port;
  EXPECT_EQ(::write(started[1], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  EXPECT_TRUE(wait([&] { return control.bytes(Direction::to_listener) >= all; }));
  EXPECT_TRUE(wait([&] { return world_.count_events(0, "wire_stranger") > 0; }, 5 * kSecond));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  for (const int end : started) ::close(end);
}

INSTANTIATE_TEST_SUITE_P(BytesOfEach, ManyEndlessMessages,
                         testing::Values(std::pair(5, 16 << 20), std::pair(110, 640 << 10)));

TEST_F(ZmqPairQuick, WhoDoesNotGreetIsNotKept) {
  start(0);
  RawClient client(endpoint(Lane::control), world_.key(0).public_key, world_.key(1));
  ASSERT_TRUE(wait([&] { return client.saw(ZMQ_EVENT_HANDSHAKE_SUCCEEDED); }));
  run_for(700 * kMillisecond);
  EXPECT_FALSE(client.saw(ZMQ_EVENT_DISCONNECTED));
  EXPECT_TRUE(wait([&] { return client.saw(ZMQ_EVENT_DISCONNECTED); }, kSecond));
  EXPECT_EQ(world_.count_events(0, "wire_stranger"), 1U);
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
  EXPECT_EQ(*probe_socket(endpoint(Lane::control), ProbeAs::curve, world_.key(0).public_key,
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

}  // namespace isthmus::inter

// The bulk lane of the real wire: who gets in, what strangers can cost, and what a listed gateway
// can do wrong.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "inter/socket_check.h"
#include "inter/tls_listener.h"
#include "security/signing_key.h"
#include "security/tls_stream.h"
#include "tests/inter/zmq_pair.h"

namespace isthmus::inter {
namespace {

using security::SigningKey;
using security::TlsContext;
using security::TlsRole;
using security::TlsStream;
using security::TlsWants;

constexpr int kPatienceMs = 5000;

// Processor time of this process.
Nanoseconds processor_time() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& t) { return t.tv_sec * kSecond + t.tv_usec * 1000; };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

Bytes id_bytes(GatewayId id) { return ByteWriter().put(id.site).put(id.index).take(); }

Bytes frame(std::uint32_t size, std::size_t bytes) {
  return ByteWriter().put(size).raw(Bytes(bytes, std::byte{0x5a})).take();
}

// A program of somebody's that speaks TLS; it waits for everything it does.
class TlsClient {
 public:
  TlsClient(std::uint16_t port, std::span<const std::byte> seed, const security::PublicKey& server)
      : socket_(connect_tcp(port)), context_(*TlsContext::make(seed)) {
    ::fcntl(socket_, F_SETFL, ::fcntl(socket_, F_GETFL) | O_NONBLOCK);
    stream_ = *TlsStream::make(context_, TlsRole::dialing, socket_,
                               [=](const auto& key) { return key == server; });
    for (;;) {
      const auto done = stream_->handshake();
      if (!done || *done == TlsWants::nothing) break;
      if (!wait(*done)) break;
    }
  }
  ~TlsClient() {
    stream_.reset();
    ::close(socket_);
  }

  // Until `size` bytes have come, or the end; nothing: silence.
  std::optional<Bytes> read(std::size_t size) {
    Bytes got;
    while (got.size() < size) {
      std::byte some[4096];
      const auto read =
          stream_->read(std::span(some).first(std::min(sizeof some, size - got.size())));
      if (!read) {
        ended_ = read.error();
        break;
      }
      got.insert(got.end(), some, some + read->bytes);
      if (read->wants != TlsWants::nothing && !wait(read->wants)) return std::nullopt;
    }
    return got;
  }
  bool write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto sent = stream_->write(bytes, false);
      if (!sent || (sent->wants != TlsWants::nothing && !wait(sent->wants))) return false;
      bytes = bytes.subspan(sent->bytes);
    }
    return true;
  }
  // As a gateway does it.
  bool come_up(GatewayId self) {
    return read(8).value_or(Bytes()).size() == 8 && write(id_bytes(self));
  }
  // It was cut off within a moment.
  bool ended() {
    const auto got = read(1);
    return got && ended_.has_value();
  }
  const std::optional<Error>& why() const { return ended_; }

 private:
  bool wait(TlsWants wants) {
    pollfd polled{socket_, static_cast<short>(wants == TlsWants::read ? POLLIN : POLLOUT), 0};
    return ::poll(&polled, 1, kPatienceMs) > 0;
  }

  int socket_;
  TlsContext context_;
  std::unique_ptr<TlsStream> stream_;
  std::optional<Error> ended_;
};

class BulkLane : public ZmqPair {
 protected:
  std::uint16_t port() {
    return lane_address(*parse_tcp_address(world_.options(0).listen), Lane::bulk).port;
  }
  TcpAddress address() { return {"127.0.0.1", port()}; }
  const security::PublicKey& server() { return world_.identity(0).public_part().identity; }
  // Gateway 1's identity in somebody's hands.
  TlsClient listed_client() { return {port(), world_.identity(1).identity_seed(), server()}; }
  ProbeOutcome probe(ProbeBulkAs mechanism, const SigningKey& key) {
    return *probe_bulk_socket(address(), mechanism, server(), key, 2 * kSecond);
  }
  // The other end has closed; whatever it said before is passed over.
  static bool closed_by_peer(int descriptor, int patience_ms = kPatienceMs) {
    char bytes[4096];
    for (;;) {
      pollfd polled{descriptor, POLLIN, 0};
      if (::poll(&polled, 1, patience_ms) <= 0) return false;
      if (::recv(descriptor, bytes, sizeof bytes, 0) <= 0) return true;
    }
  }
};

}  // namespace

// ---- Who gets in.

TEST_F(BulkLane, StrangersAreRefusedBeforeAnyPayload) {
  start_both();
  const auto stranger = SigningKey::generate();
  EXPECT_EQ(probe(ProbeBulkAs::tls, stranger), ProbeOutcome::refused_key);
  EXPECT_EQ(probe(ProbeBulkAs::tls_1_2, stranger), ProbeOutcome::refused_protocol);
  EXPECT_EQ(probe(ProbeBulkAs::plaintext, stranger), ProbeOutcome::closed);
  EXPECT_EQ(world_.count_events(0, "wire_key_refused"), 1U);
  EXPECT_GE(world_.count_events(0, "wire_stranger"), 1U);
  // Also who does not wait for the answer gets nothing through.
  TlsClient client(port(), stranger.seed(), server());
  client.write(id_bytes(world_gateway(1)));
  client.write(frame(100, 100));
  EXPECT_TRUE(client.ended());
  run_for(200 * kMillisecond);
  EXPECT_EQ(counters_[0].messages, 0U);
  EXPECT_EQ(counters_[0].live[Lane::bulk].size(), 1U);
  expect_working();
}

TEST_F(BulkLane, AHealthyStartSpeaksOfNoStranger) {
  start_both();
  run_for(500 * kMillisecond);
  for (const int site : {0, 1})
    for (const auto* event : {"wire_stranger", "wire_key_refused", "wire_peer_refused"})
      EXPECT_EQ(world_.count_events(site, event), 0U) << event;
}

TEST_F(BulkLane, HandshakesGoOnWhileTheLoopIsBusy) {
  start_both();
  // Nobody runs the loops meanwhile.
  auto client = listed_client();
  EXPECT_TRUE(client.come_up(world_gateway(1)));
}

TEST_F(BulkLane, TheKeyForTheCheckAtTheStartIsNobodysAfterwards) {
  start(0);
  const auto listed = SigningKey::generate();
  EXPECT_EQ(check_bulk_socket(address(), server(), listed).error().code,
            ErrorCode::unauthenticated);
}

TEST_F(BulkLane, AGatewayOfAnotherSiteIsRefused) {
  start(0);
  for (const GatewayId id : {GatewayId{99, 0}, world_gateway(0), GatewayId{11, 7}}) {
    auto client = listed_client();
    ASSERT_TRUE(client.come_up(id));
    client.write(frame(8, 8));
    EXPECT_TRUE(client.ended()) << id.site << "/" << id.index;
  }
  run_for(100 * kMillisecond);
  EXPECT_TRUE(counters_[0].down());
  EXPECT_EQ(counters_[0].messages, 0U);
  EXPECT_GE(world_.count_events(0, "wire_peer_refused"), 1U);
}

TEST(BulkLaneOfThree, AnotherListedSiteAtTheDialedAddressIsRefused) {
  ZmqWorld world(3);
  Counter counters[3];
  // Gateway 2 believes that gateway 0 is where gateway 1 is.
  world.options(2).peers[0].address = world.options(1).listen;
  for (std::size_t i : {0, 1, 2}) world.start(i, counters[i]);
  EXPECT_TRUE(
      world.run_until([&] { return counters[2].live[Lane::bulk].size() == 1; }, 5 * kSecond));
  world.run_until([] { return false; }, kSecond);
  EXPECT_EQ(counters[2].live[Lane::bulk].size(), 1U);  // gateway 1
  EXPECT_EQ(counters[2].downs[Lane::bulk], 0);
  EXPECT_EQ(counters[0].live[Lane::bulk].size(), 1U);        // gateway 1
  EXPECT_EQ(world.count_events(2, "wire_unreachable"), 2U);  // once a lane, not once an attempt
}

TEST_F(BulkLane, ADialedEndThatSpeaksForAnotherGatewayIsRefused) {
  // Another gateway of the same site: its key is right, and it is not the one that was dialed.
  world_.options(1).peers[0].id.index = 1;
  start(0);
  start(1);
  run_for(kSecond);
  EXPECT_TRUE(counters_[1].live[Lane::bulk].empty());
  EXPECT_EQ(counters_[1].downs[Lane::bulk], 0);
}

TEST_F(BulkLane, TwoProcessesWithOneKeyAreTwoConnections) {
  start_both();
  auto twin = listed_client();
  ASSERT_TRUE(twin.come_up(world_gateway(1)));
  EXPECT_TRUE(wait([&] { return counters_[0].live[Lane::bulk].size() == 2; }));
  const auto older = *counters_[0].live[Lane::bulk].begin();
  ASSERT_TRUE(wires_[0]->send(world_gateway(1), Lane::bulk, message_of(8), older));
  EXPECT_TRUE(wait([&] { return counters_[1].messages == 1; }));
  ASSERT_TRUE(wires_[0]->send(world_gateway(1), Lane::bulk, message_of(8)));
  EXPECT_EQ(twin.read(12), frame(8, 8));
  EXPECT_EQ(counters_[1].messages, 1U);
}

TEST_F(BulkLane, TheDialingEndMakesAsManyConnectionsAsAreAskedFor) {
  world_.options(1).bulk_connections_max = 5;
  start_both();
  wires_[0]->widen(world_gateway(1), 3);
  wires_[1]->widen(world_gateway(0), 3);
  const auto live = [&](std::size_t gateway) { return counters_[gateway].live[Lane::bulk].size(); };
  ASSERT_TRUE(wait([&] { return live(0) == 3 && live(1) == 3; }));
  for (const auto connection : counters_[1].live[Lane::bulk])
    ASSERT_TRUE(wires_[1]->send(world_gateway(0), Lane::bulk, message_of(8), connection));
  EXPECT_TRUE(wait([&] { return counters_[0].messages == 3; }));
  // Up to its own limit; and none goes where fewer are asked for.
  wires_[1]->widen(world_gateway(0), 100);
  wires_[1]->widen(world_gateway(0), 1);
  ASSERT_TRUE(wait([&] { return live(0) == 5; }));
  run_for(200 * kMillisecond);
  EXPECT_EQ(live(0), 5U);
  // Each is dialed again by itself.
  wires_[0]->reset(world_gateway(1), Lane::bulk, *counters_[0].live[Lane::bulk].begin());
  EXPECT_TRUE(wait([&] { return counters_[0].downs[Lane::bulk] == 1 && live(0) == 5; }));
}

TEST_F(BulkLane, EverMoreConnectionsEndTheOldestOnes) {
  world_.options(0).bulk_connections_max = 1;
  start(0);
  std::vector<std::unique_ptr<TlsClient>> clients;
  for (std::size_t i = 0; i < 12; ++i) {
    clients.push_back(
        std::make_unique<TlsClient>(port(), world_.identity(1).identity_seed(), server()));
    ASSERT_TRUE(clients.back()->come_up(world_gateway(1)));
    if (i >= 6) continue;  // the others all come while the loop is busy
    ASSERT_TRUE(wait([&] { return counters_[0].live[Lane::bulk].size() == i + 1; }));
  }
  EXPECT_TRUE(clients[3]->ended());
  EXPECT_TRUE(wait([&] { return counters_[0].live[Lane::bulk].size() == 8; }));
  run_for(200 * kMillisecond);
  ASSERT_EQ(counters_[0].live[Lane::bulk].size(), 8U);
  for (std::size_t i = 4; i < 12; ++i) {
    ASSERT_TRUE(clients[i]->write(frame(8, 8)));
    EXPECT_TRUE(wait([&] { return counters_[0].messages == i - 3; })) << i;
  }
}

// ---- What a listed gateway can do wrong.

TEST_F(BulkLane, AMessageThatIsTooLongEndsTheConnection) {
  start(0);
  const auto before = resident_bytes();
  for (const std::uint32_t size :
       {static_cast<std::uint32_t>(kBulkMessageBytesMax + 1), 1U << 30, ~0U}) {
    auto client = listed_client();
    ASSERT_TRUE(client.come_up(world_gateway(1)));
    ASSERT_TRUE(wait([&] { return counters_[0].live[Lane::bulk].size() == 1; }));
    client.write(frame(size, 100));
    EXPECT_TRUE(client.ended());
    EXPECT_TRUE(wait([&] { return counters_[0].live[Lane::bulk].empty(); }));
  }
  EXPECT_EQ(counters_[0].messages, 0U);
  EXPECT_EQ(world_.count_events(0, "wire_violation"), 3U);
  if (!kSanitized) {
    EXPECT_LT(resident_bytes(), before + (4 << 20));
  }
}

TEST_F(BulkLane, MessagesComeWholeHoweverTheyAreCut) {
  start(0);
  auto client = listed_client();
  ASSERT_TRUE(client.come_up(world_gateway(1)));
  Bytes all;
  const std::uint32_t sizes[] = {0, 1, 0, 5000, 16380, 16381, 40000, 0};
  for (const auto size : sizes) {
    const auto one = frame(size, size);
    all.insert(all.end(), one.begin(), one.end());
  }
  for (std::size_t at = 0, step = 1; at < all.size(); at += step, step = step * 3 % 7919)
    ASSERT_TRUE(client.write(std::span(all).subspan(at, std::min(step, all.size() - at))));
  EXPECT_TRUE(wait([&] { return counters_[0].messages == std::size(sizes); }));
  EXPECT_EQ(counters_[0].damaged, 0U);
  EXPECT_TRUE(counters_[0].last.empty());
}

TEST_F(BulkLane, HalfAMessageAndThenSilenceEndsTheConnection) {
  world_.options(0).bulk_timeout = 500 * kMillisecond;
  start(0);
  auto idle = listed_client();
  ASSERT_TRUE(idle.come_up(world_gateway(1)));
  ASSERT_TRUE(idle.write(frame(10, 10)));
  auto half = listed_client();
  ASSERT_TRUE(half.come_up(world_gateway(1)));
  ASSERT_TRUE(half.write(frame(1 << 20, 1000)));
  ASSERT_TRUE(wait([&] { return counters_[0].live[Lane::bulk].size() == 2; }));
  // Progress, however slow, keeps it.
  for (int i = 0; i < 4; ++i) {
    run_for(300 * kMillisecond);
    ASSERT_TRUE(half.write(Bytes(1)));
  }
  EXPECT_EQ(counters_[0].live[Lane::bulk].size(), 2U);
  EXPECT_TRUE(half.ended());
  EXPECT_TRUE(wait([&] { return counters_[0].live[Lane::bulk].size() == 1; }));
  // Between messages there is no hurry.
  ASSERT_TRUE(idle.write(frame(10, 10)));
  EXPECT_TRUE(wait([&] { return counters_[0].messages == 2; }));
}

TEST_F(BulkLane, WhatIsNotTakenStopsTheSender) {
  start(0);
  auto client = listed_client();
  ASSERT_TRUE(client.come_up(world_gateway(1)));
  ASSERT_TRUE(wait([&] { return counters_[0].live[Lane::bulk].size() == 1; }));
  // Nobody runs the loop: a few messages, and what TCP takes.
  const auto message = frame(kBulkMessageBytesMax, kBulkMessageBytesMax);
  const auto before = resident_bytes();
  std::atomic<int> taken = 0;
  std::thread writer([&] {
    while (taken < 64 && client.write(message)) ++taken;
  });
  std::this_thread::sleep_for(std::chrono::seconds(2));
  EXPECT_LT(taken, 32);
  if (!kSanitized) {
    EXPECT_LT(resident_bytes(), before + (16 << 20));
  }
  EXPECT_TRUE(wait([&] { return counters_[0].messages == 64; }));
  writer.join();
  EXPECT_EQ(counters_[0].whole, 64U);
  EXPECT_EQ(counters_[0].damaged, 0U);
}

TEST_F(BulkLane, AStoppedReaderCostsTheSenderLittle) {
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

// ---- What strangers can cost.

TEST_F(BulkLane, SilentStrangersAreThrownOut) {
  world_.options(0).handshake_timeout = 500 * kMillisecond;
  start(0);
  std::vector<int> strangers;
  for (int i = 0; i < 40; ++i) strangers.push_back(connect_tcp(port()));
  // Some stop in the middle of their first word.
  const char hello[] = {0x16, 3, 1, 0, 100, 1, 0, 0, 96, 3, 3};
  for (int i = 20; i < 40; ++i)
    ASSERT_EQ(::send(strangers[static_cast<std::size_t>(i)], hello, sizeof hello - (i - 20) / 2,
                     MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof hello) - (i - 20) / 2);
  // And one goes no further than the handshake.
  auto mute = listed_client();
  ASSERT_EQ(mute.read(8).value_or(Bytes()).size(), 8U);
  for (const int stranger : strangers) {
    EXPECT_TRUE(closed_by_peer(stranger));
    ::close(stranger);
  }
  EXPECT_TRUE(mute.ended());
  EXPECT_GE(world_.count_events(0, "wire_stranger"), 1U);
  EXPECT_LT(world_.count_events(0, "wire_stranger"), 10U);
  start(1);
  EXPECT_TRUE(wait_until_up());
  expect_working();
}

TEST_F(BulkLane, TenThousandIdleStrangersKeepNobodyOut) {
  world_.options(0).handshake_timeout = 60 * kSecond;
  // The strangers' own ports may be the one that it would listen on.
  world_.options(1).listen = world_.options(1).own_address = "";
  start(0);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const auto count = std::min<std::size_t>(10'000, limit.rlim_cur - 1000);
  std::vector<int> strangers;
  const auto before = resident_bytes();
  for (std::size_t i = 0; i < count; ++i) strangers.push_back(connect_tcp(port()));
  start(1);
  EXPECT_TRUE(wait_until_up());
  expect_working();
  if (!kSanitized) {
    EXPECT_LT(resident_bytes(), before + (24 << 20));
  }
  const auto open = [&] {
    return static_cast<std::size_t>(std::ranges::count_if(
        strangers, [](int stranger) { return !closed_by_peer(stranger, 0); }));
  };
  EXPECT_TRUE(wait([&] { return open() <= TlsListener::kStrangersMax; }));
  EXPECT_GE(open(), TlsListener::kStrangersMax / 2);
  EXPECT_LT(world_.count_events(0, "wire_stranger"), 20U);
  // They cost nothing while they wait.
  const auto spent = processor_time();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_LT(processor_time() - spent, kSecond / 5);
  // Nor does a gateway that comes while they hold all places.
  world_.kill(1);
  counters_[1] = {};
  start(1);
  EXPECT_TRUE(wait_until_up());
  for (const int stranger : strangers) ::close(stranger);
}

TEST_F(BulkLane, OutOfDescriptorsIsWaitedOut) {
  start(0);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int highest = connect_tcp(port());
  run_for(100 * kMillisecond);
  // Room for clients, and none for their other ends.
  std::vector<int> strangers;
  for (int i = 0; i < 8; ++i) strangers.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit low = before;
  low.rlim_cur = static_cast<rlim_t>(highest) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(port());
  for (const int stranger : strangers)
    EXPECT_EQ(::connect(stranger, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  const auto spent = processor_time();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_LT(processor_time() - spent, kSecond / 5);
  EXPECT_GE(world_.count_events(0, "wire_stranger"), 1U);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  start(1);
  EXPECT_TRUE(wait_until_up());
  expect_working();
  for (const int stranger : strangers) ::close(stranger);
  ::close(highest);
}

TEST_F(BulkLane, AHelloThatClaimsToBeLongTakesNoMemory) {
  start_both();
  const auto before = resident_bytes();
  std::vector<int> strangers;
  const unsigned char hello[] = {0x16, 3, 1, 0x40, 0, 1, 0x01, 0xff, 0xff, 3, 3};
  for (int i = 0; i < 200; ++i) {
    strangers.push_back(connect_tcp(port()));
    ASSERT_EQ(::send(strangers.back(), hello, sizeof hello, MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof hello));
  }
  for (const int stranger : strangers) {
    EXPECT_TRUE(closed_by_peer(stranger));
    ::close(stranger);
  }
  if (!kSanitized) {
    EXPECT_LT(resident_bytes(), before + (8 << 20));
  }
  expect_working();
}

// They are in the middle of a handshake: the dearest that a stranger without a key can be.
TEST_F(BulkLane, AHandshakeThatStopsHalfwayCostsLittle) {
  start(0);
  // What a dialing end says first.
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
  const auto key = SigningKey::generate();
  Bytes hello(4096);
  {
    const auto context = *TlsContext::make(key.seed());
    const auto stream =
        *TlsStream::make(context, TlsRole::dialing, pair[0], [](const auto&) { return true; });
    EXPECT_EQ(*stream->handshake(), TlsWants::read);
    hello.resize(static_cast<std::size_t>(::recv(pair[1], hello.data(), hello.size(), 0)));
  }
  ::close(pair[0]);
  ::close(pair[1]);
  constexpr std::size_t kStrangers = 200;
  constexpr std::size_t kBytesEach = 64 << 10;
  const auto before = resident_bytes();
  std::vector<int> strangers;
  for (std::size_t i = 0; i < kStrangers; ++i) {
    strangers.push_back(connect_tcp(port()));
    ASSERT_EQ(::send(strangers.back(), hello.data(), hello.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(hello.size()));
    char answer[4096];
    ASSERT_GT(::recv(strangers.back(), answer, sizeof answer, 0), 100);
  }
  if (!kSanitized) {
    EXPECT_LT(resident_bytes(), before + kStrangers * kBytesEach);
  }
  for (const int stranger : strangers) ::close(stranger);
}

// ---- Keys, counts, and what TCP is told.

TEST_F(BulkLane, KeysChangeAndNobodyNotices) {
  use_proxies();
  for (std::size_t i : {0, 1}) world_.options(i).bulk_key_bytes_max = 3 << 20;
  start_both();
  const auto& proxy = *proxies_[static_cast<std::size_t>(Lane::bulk)];
  for (std::size_t from : {0, 1}) {
    const auto direction = from == 1 ? Direction::to_listener : Direction::to_dialer;
    const auto passed = proxy.bytes(direction);
    const auto counted = wires_[from]->bytes_sent(world_gateway(1 - from));
    std::size_t sent = 0;
    EXPECT_TRUE(wait([&] {
      while (sent < 20 &&
             wires_[from]->send(world_gateway(1 - from), Lane::bulk, message_of(1 << 20)))
        ++sent;
      return counters_[1 - from].messages == 20;
    }));
    EXPECT_EQ(counters_[1 - from].damaged, 0U);
    // 65 records a message, its length, and a key update of 27 bytes each 3 MiB.
    const std::uint64_t expected = 20 * ((1 << 20) + 4 + 65 * 22) + 6 * 27;
    EXPECT_EQ(proxy.bytes(direction) - passed, expected);
    EXPECT_TRUE(wait(
        [&] { return wires_[from]->bytes_sent(world_gateway(1 - from)) - counted == expected; }));
  }
  EXPECT_EQ(counters_[0].downs[Lane::bulk], 0);
}

TEST_F(BulkLane, TcpIsToldWhenAConnectionIsDead) {
  start_both();
  std::size_t found = 0;
  for (int descriptor = 0; descriptor < 1024; ++descriptor) {
    const auto get = [&](int level, int option) {
      int value = -1;
      socklen_t size = sizeof value;
      return ::getsockopt(descriptor, level, option, &value, &size) == 0 ? value : -1;
    };
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &size) != 0 ||
        get(IPPROTO_TCP, TCP_NOTSENT_LOWAT) != 1 << 20)
      continue;
    ++found;
    EXPECT_EQ(get(SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_EQ(get(IPPROTO_TCP, TCP_USER_TIMEOUT), 8000);
    EXPECT_EQ(get(IPPROTO_TCP, TCP_KEEPIDLE), 2);
    EXPECT_EQ(get(IPPROTO_TCP, TCP_KEEPINTVL), 1);
    EXPECT_EQ(get(IPPROTO_TCP, TCP_NODELAY), 1);
  }
  EXPECT_EQ(found, 2U);
}

// ---- The check at the start.

TEST_F(BulkLane, TheCheckFindsASocketThatAnswersAnybody) {
  const auto free = free_port_pair();
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  where.sin_port = htons(free);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&where), sizeof where), 0);
  const auto key = SigningKey::generate();
  const auto probe_free = [&](ProbeBulkAs mechanism) {
    return *probe_bulk_socket({"127.0.0.1", free}, mechanism, key.public_key(), key,
                              300 * kMillisecond);
  };
  EXPECT_EQ(probe_free(ProbeBulkAs::tls), ProbeOutcome::unreachable);
  ASSERT_EQ(::listen(listener, 8), 0);
  for (const auto mechanism : {ProbeBulkAs::tls, ProbeBulkAs::tls_1_2, ProbeBulkAs::plaintext})
    EXPECT_EQ(probe_free(mechanism), ProbeOutcome::silent);
  const auto checked =
      check_bulk_socket({"127.0.0.1", free}, key.public_key(), key, 300 * kMillisecond);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, ErrorCode::timeout) << "silence proves nothing, and ends nothing";
  EXPECT_NE(checked.error().text().find(std::to_string(free)), std::string::npos);
  // One that goes along with plaintext.
  std::thread echo([&] {
    for (int i = 0; i < 16; ++i) {
      const int taken = ::accept(listener, nullptr, nullptr);
      if (taken < 0) return;
      char bytes[4096];
      const auto got = ::recv(taken, bytes, sizeof bytes, 0);
      if (got > 0) ::send(taken, bytes, static_cast<std::size_t>(got), MSG_NOSIGNAL);
      ::close(taken);
    }
  });
  // Those before this one are in the backlog still.
  EXPECT_EQ(probe_free(ProbeBulkAs::plaintext), ProbeOutcome::accepted);
  ::shutdown(listener, SHUT_RDWR);
  echo.join();
  ::close(listener);
}

}  // namespace isthmus::inter

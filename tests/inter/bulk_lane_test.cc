// The bulk lane of the real wire: who gets in, and what a listed gateway can do wrong. What
// strangers can cost: bulk_strangers_test.cc.
#include "tests/inter/bulk_lane.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "inter/socket_check.h"
#include "security/signing_key.h"

namespace isthmus::inter {
namespace {

using security::SigningKey;

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
  EXPECT_EQ(counters[0].live[Lane::bulk].size(), 1U);  // gateway 1
  // Once, not once a lane and attempt.
  EXPECT_EQ(world.count_events(2, "wire_unreachable"), 1U);
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

// A peer that has a lower limit, as it says: what is beyond ends, and comes again when it may.
TEST_F(BulkLane, TheDialingEndKeepsToThePeersLimit) {
  start_both();
  const auto live = [&](std::size_t gateway) { return counters_[gateway].live[Lane::bulk].size(); };
  wires_[1]->limit_width(world_gateway(0), 4);
  wires_[1]->widen(world_gateway(0), 16);
  ASSERT_TRUE(wait([&] { return live(0) == 4; }));
  run_for(200 * kMillisecond);
  EXPECT_EQ(live(0), 4U);
  wires_[1]->limit_width(world_gateway(0), 2);
  ASSERT_TRUE(wait([&] { return live(0) == 2 && live(1) == 2; }));
  run_for(500 * kMillisecond);  // longer than it waits to dial again
  EXPECT_EQ(live(0), 2U);
  // At once: some still end, or have not been told.
  wires_[1]->limit_width(world_gateway(0), 1);
  wires_[1]->limit_width(world_gateway(0), 3);
  wires_[1]->widen(world_gateway(0), 16);
  ASSERT_TRUE(wait([&] { return live(0) == 3 && live(1) == 3; }));
  wires_[1]->limit_width(world_gateway(0), 1000);
  wires_[1]->widen(world_gateway(0), 5);
  EXPECT_TRUE(wait([&] { return live(0) == 5 && live(1) == 5; }));
}

class EverMoreConnections : public BulkLane {
 protected:
  void come(std::size_t count) {
    world_.options(0).bulk_connections_max = 1;
    start(0);
    for (std::size_t i = 0; i < count; ++i) {
      clients_.push_back(
          std::make_unique<TlsClient>(port(), world_.identity(1).identity_seed(), server()));
      ASSERT_TRUE(clients_.back()->come_up(world_gateway(1)));
      if (i >= 6) continue;  // the others all come while the loop is busy
      ASSERT_TRUE(wait([&] { return counters_[0].live[Lane::bulk].size() == i + 1; }));
    }
  }
  void expect_left(const std::vector<std::size_t>& left) {
    EXPECT_TRUE(wait([&] { return counters_[0].live[Lane::bulk].size() == left.size(); }));
    run_for(200 * kMillisecond);
    ASSERT_EQ(counters_[0].live[Lane::bulk].size(), left.size());
    for (const auto i : left) {
      const auto before = counters_[0].messages;
      ASSERT_TRUE(clients_[i]->write(frame(8, 8)));
      EXPECT_TRUE(wait([&] { return counters_[0].messages == before + 1; })) << i;
    }
  }

  std::vector<std::unique_ptr<TlsClient>> clients_;
};

// What is on its way on them would have to go again, and who dials too many dials those again.
TEST_F(EverMoreConnections, EndNoneThatLives) {
  come(12);
  for (std::size_t i = 8; i < 12; ++i) EXPECT_TRUE(clients_[i]->ended()) << i;
  expect_left({0, 1, 2, 3, 4, 5, 6, 7});
}

TEST_F(EverMoreConnections, EndTheSilentOnes) {
  world_.options(0).silent_after = 0;
  come(8);
  run_for(100 * kMillisecond);
  for (const std::size_t i : {0, 2, 3, 4, 5, 6, 7}) {
    const auto before = counters_[0].messages;
    ASSERT_TRUE(clients_[i]->write(frame(8, 8)));
    ASSERT_TRUE(wait([&] { return counters_[0].messages == before + 1; }));
  }
  clients_.push_back(
      std::make_unique<TlsClient>(port(), world_.identity(1).identity_seed(), server()));
  ASSERT_TRUE(clients_.back()->come_up(world_gateway(1)));
  EXPECT_TRUE(clients_[1]->ended());
  expect_left({0, 2, 3, 4, 5, 6, 7, 8});
}

// ---- What a listed gateway can do wrong.

// What a listed peer can cause is logged at a pace.
TEST_F(BulkLane, ViolationsDoNotFloodTheLog) {
  start(0);
  for (int i = 0; i < 60; ++i) {
    auto client = listed_client();
    ASSERT_TRUE(client.come_up(world_gateway(1)));
    ASSERT_TRUE(wait([&] { return counters_[0].live[Lane::bulk].size() == 1; }));
    client.write(frame(~0U, 100));
    EXPECT_TRUE(client.ended());
    EXPECT_TRUE(wait([&] { return counters_[0].live[Lane::bulk].empty(); }));
  }
  run_for(200 * kMillisecond);
  EXPECT_GE(world_.count_events(0, "wire_violation"), 1U);
  EXPECT_LE(world_.count_events(0, "wire_violation"), 30U);
}

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

TEST_F(BulkLane, ConnectionsShareWhatTcpMayHoldUnsent) {
  start_both();
  for (const std::size_t gateway : {0, 1}) wires_[gateway]->widen(world_gateway(1 - gateway), 4);
  const auto with_a_quarter = [] {
    std::size_t found = 0;
    for (int descriptor = 0; descriptor < 1024; ++descriptor) {
      int value = -1;
      socklen_t size = sizeof value;
      if (::getsockopt(descriptor, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &value, &size) == 0)
        found += value == 1 << 18 ? 1 : 0;
    }
    return found;
  };
  EXPECT_TRUE(wait([&] { return with_a_quarter() == 8; })) << with_a_quarter();
}

TEST_F(BulkLane, EachByteThatIsNotThereYetIsCounted) {
  start_both();
  world_.pause(1);
  std::uint64_t sent = 0;
  wait(
      [&] {
        while (wires_[0]->send(world_gateway(1), Lane::bulk, message_of(kBulkMessageBytesMax)))
          sent += kBulkMessageBytesMax;
        return false;
      },
      kSecond);
  const auto paths = wires_[0]->bulk_paths(world_gateway(1));
  ASSERT_EQ(paths.size(), 1U);
  EXPECT_GT(paths[0].unwritten_bytes, kBulkMessageBytesMax) << "the wire's queue is full";
  const auto sum =
      paths[0].unwritten_bytes + paths[0].tcp.waiting_bytes + paths[0].tcp.acknowledged_bytes;
  EXPECT_GE(sum, sent);
  // TLS adds 22 bytes to each 16 KiB, and its handshake.
  EXPECT_LE(sum, sent + sent / 500 + (16 << 10));
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

}  // namespace
}  // namespace isthmus::inter

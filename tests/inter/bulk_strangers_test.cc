// What strangers on the network can cost on the bulk lane: its places, descriptors, processor time
// and memory. The control lane: zmq_strangers_test.cc.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "inter/tls_listener.h"
#include "security/signing_key.h"
#include "security/tls_stream.h"
#include "tests/inter/bulk_lane.h"

namespace isthmus::inter {
namespace {

using security::SigningKey;
using security::TlsContext;
using security::TlsRole;
using security::TlsStream;
using security::TlsWants;

// Processor time of this process.
Nanoseconds processor_time() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& t) { return t.tv_sec * kSecond + t.tv_usec * 1000; };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

// The other end has closed; whatever it said before is passed over.
bool closed_by_peer(int descriptor, int patience_ms = kPatienceMs) {
  char bytes[4096];
  for (;;) {
    pollfd polled{descriptor, POLLIN, 0};
    if (::poll(&polled, 1, patience_ms) <= 0) return false;
    if (::recv(descriptor, bytes, sizeof bytes, 0) <= 0) return true;
  }
}

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

}  // namespace
}  // namespace isthmus::inter

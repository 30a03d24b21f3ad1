#include "inter/socket_check.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <thread>

#include "inter/host_names.h"
#include "inter/zap_handler.h"
#include "inter/zmq_socket.h"
#include "tests/inter/free_ports.h"
#include "tests/inter/zmq_world.h"

namespace isthmus::inter {

namespace {

// One listening socket, as secure as a case makes it.
class SocketCheck : public testing::Test {
 protected:
  void SetUp() override {
    context_ = *ZmqContext::make(1, 16);
    socket_ = *ZmqSocket::open(*context_, ZMQ_ROUTER);
  }
  void handle_zap() {
    zap_ = *ZapHandler::start(*context_, *clock_, log_);
    zap_->list(listed_.public_key, "check");
  }
  void bind() { ASSERT_TRUE(socket_.bind(endpoint_)); }
  ProbeOutcome probe(ProbeAs mechanism, const CurveKeyPair& key) {
    return *probe_socket(endpoint_, mechanism, server_.public_key, key, kSecond);
  }
  // Of an unsafe socket: refused in time, and said which socket.
  void expect_unsafe(ErrorCode code = ErrorCode::unauthenticated) {
    const auto before = clock_->now();
    const auto checked =
        check_listening_socket(endpoint_, server_.public_key, listed_, 2 * kSecond);
    EXPECT_LT(clock_->now() - before, 3 * kSecond);
    ASSERT_FALSE(checked);
    EXPECT_EQ(checked.error().code, code);
    EXPECT_NE(checked.error().text().find(endpoint_), std::string::npos);
  }

  std::unique_ptr<Clock> clock_ = make_system_clock();
  EventLog log_{*clock_, "test"};
  CurveKeyPair server_ = make_curve_key_pair();
  CurveKeyPair listed_ = make_curve_key_pair();
  CurveKeyPair stranger_ = make_curve_key_pair();
  std::uint16_t port_ = free_port_pair();
  std::string endpoint_ = "tcp://127.0.0.1:" + std::to_string(port_);
  std::unique_ptr<ZmqContext> context_;
  std::unique_ptr<ZapHandler> zap_;
  ZmqSocket socket_;
};

}  // namespace

TEST_F(SocketCheck, ASafeSocketPassesQuickly) {
  handle_zap();
  ASSERT_TRUE(require_curve_server(socket_, server_.secret_key));
  bind();
  const auto before = clock_->now();
  const auto checked = check_listening_socket(endpoint_, server_.public_key, listed_);
  EXPECT_TRUE(checked) << checked.error().text();
  EXPECT_LT(clock_->now() - before, 2 * kSecond);
}

TEST_F(SocketCheck, FindsASocketWithoutEncryption) {
  handle_zap();
  bind();
  EXPECT_EQ(probe(ProbeAs::null, {}), ProbeOutcome::accepted);
  expect_unsafe();
}

// CURVE without a domain and a handler accepts any client key (libzmq's default).
TEST_F(SocketCheck, FindsASocketThatLetsAnyKeyIn) {
  ASSERT_TRUE(socket_.set(ZMQ_CURVE_SERVER, 1));
  ASSERT_TRUE(socket_.set(ZMQ_CURVE_SECRETKEY, std::span<const std::byte>(server_.secret_key)));
  bind();
  EXPECT_EQ(probe(ProbeAs::curve, stranger_), ProbeOutcome::accepted);
  expect_unsafe();
}

TEST_F(SocketCheck, FindsASocketThatKeepsListedKeysOut) {
  handle_zap();
  zap_->unlist(listed_.public_key);
  ASSERT_TRUE(require_curve_server(socket_, server_.secret_key));
  bind();
  EXPECT_EQ(probe(ProbeAs::curve, listed_), ProbeOutcome::refused_key);
  expect_unsafe();
}

TEST_F(SocketCheck, SilenceIsNoRefusal) {
  const int silent = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port_);
  ASSERT_EQ(::bind(silent, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(silent, 8), 0);
  EXPECT_EQ(
      *probe_socket(endpoint_, ProbeAs::curve, server_.public_key, stranger_, 200 * kMillisecond),
      ProbeOutcome::silent);
  // A machine may be too busy for an answer: that is tried again, and nothing is served meanwhile.
  expect_unsafe(ErrorCode::timeout);
  ::close(silent);
  EXPECT_EQ(probe(ProbeAs::null, {}), ProbeOutcome::unreachable);
}

TEST_F(SocketCheck, WithoutAHandlerNobodyGetsIn) {
  ASSERT_TRUE(require_curve_server(socket_, server_.secret_key));
  bind();
  for (const auto& key : {listed_, stranger_})
    EXPECT_NE(probe(ProbeAs::curve, key), ProbeOutcome::accepted);
  expect_unsafe();
}

TEST_F(SocketCheck, WhenTheHandlerDiesNobodyGetsInAnyMore) {
  handle_zap();
  ASSERT_TRUE(require_curve_server(socket_, server_.secret_key));
  bind();
  EXPECT_EQ(probe(ProbeAs::curve, listed_), ProbeOutcome::accepted);
  zap_.reset();
  EXPECT_NE(probe(ProbeAs::curve, listed_), ProbeOutcome::accepted);
}

// ---- Who answers at the own address

// For the thread that calls it, whoever asks for a socket of IPv6 gets this error. False: the
// kernel takes no filter.
bool refuse_ipv6_sockets(std::uint32_t error) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = std::size(filter), .filter = filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// At [::1], where a socket of IPv6 gets this error. Nothing: the kernel takes no filter.
std::optional<Result<ProbeOutcome>> check_own_address_where(int socket_error) {
  std::optional<Result<ProbeOutcome>> outcome;
  std::thread([&] {  // a filter stays as long as its thread
    if (!refuse_ipv6_sockets(static_cast<std::uint32_t>(socket_error))) return;
    const auto listed = security::SigningKey::generate();
    outcome =
        check_own_address({"::1", free_port_pair()}, listed.public_key(), listed, look_up_host);
  })
      .join();
  return outcome;
}

// It may be of a router that alone has IPv6.
TEST(OwnAddressCheck, AnAddressThatTheMachineCannotSpeakToIsUnreachable) {
  const auto outcome = check_own_address_where(EAFNOSUPPORT);
  if (!outcome) GTEST_SKIP() << "this kernel takes no seccomp filter";
  ASSERT_TRUE(*outcome) << outcome->error().text();
  EXPECT_EQ(**outcome, ProbeOutcome::unreachable);
}

TEST(OwnAddressCheck, AnAddressOfALinkThatTheMachineHasNotIsUnreachable) {
  const auto listed = security::SigningKey::generate();
  const auto outcome =
      check_own_address({"fe80::1%nosuch0", 7701}, listed.public_key(), listed, look_up_host);
  ASSERT_TRUE(outcome) << outcome.error().text();
  EXPECT_EQ(*outcome, ProbeOutcome::unreachable);
}

TEST(OwnAddressCheck, WhatTheMachineLacksForTheMomentIsAnError) {
  const auto outcome = check_own_address_where(EMFILE);
  if (!outcome) GTEST_SKIP() << "this kernel takes no seccomp filter";
  ASSERT_FALSE(*outcome);
  EXPECT_EQ(outcome->error().code, ErrorCode::io) << outcome->error().text();
}

TEST_F(SocketCheck, UserIdsAreReadExactly) {
  EXPECT_EQ(gateway_of_user_id("3/0"), (GatewayId{3, 0}));
  EXPECT_EQ(gateway_of_user_id(user_id_of({4294967295, 17})), (GatewayId{4294967295, 17}));
  for (const auto* text :
       {"", "3", "3/", "/0", "3/0 ", " 3/0", "3/0/1", "-3/0", "4294967296/0", "check", "3/x"})
    EXPECT_FALSE(gateway_of_user_id(text)) << text;
}

}  // namespace isthmus::inter

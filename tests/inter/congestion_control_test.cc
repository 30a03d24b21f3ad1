#include "inter/congestion_control.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/event_log.h"

namespace isthmus::inter {
namespace {

class CongestionControlTest : public testing::Test {
 protected:
  CongestionControlTest() {
    log_.add(make_callback_sink(
        [this](const Event& event) { said_ += event.id == "wire_congestion_control"; }));
  }
  ~CongestionControlTest() override { ::close(socket_); }

  const std::unique_ptr<Clock> clock_ = make_system_clock();
  EventLog log_{*clock_, "test"};
  int said_ = 0;
  const int socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
};

TEST_F(CongestionControlTest, WhatTheSystemRefusesIsSaidToBeRefused) {
  CongestionControl congestion(log_, "nosuch");
  congestion.ask(socket_);
  EXPECT_EQ(congestion.why("cubic"), "the system refused nosuch");
}

// A route's own is in force from when a connection begins, whatever its socket was given before.
TEST_F(CongestionControlTest, WhatARoutePrescribesIsNotTheSystemsRefusal) {
  CongestionControl congestion(log_, "reno");  // every kernel has it
  congestion.ask(socket_);
  EXPECT_EQ(congestion.why("reno"), "as asked for");
  EXPECT_EQ(congestion.why("cubic"), "a route of this machine has its own, in place of reno");
}

TEST_F(CongestionControlTest, EachThatIsInForceIsSaidOnce) {
  CongestionControl congestion(log_, "");
  std::ifstream allowed("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
  int names = 0;
  for (std::string name; allowed >> name; ++names) {
    ASSERT_EQ(::setsockopt(socket_, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                           static_cast<socklen_t>(name.size())),
              0);
    for (int connection = 0; connection < 2; ++connection) congestion.note(socket_);
    EXPECT_EQ(said_, names + 1) << name;
  }
  EXPECT_GE(names, 1);
}

}  // namespace
}  // namespace isthmus::inter

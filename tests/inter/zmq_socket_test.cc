#include "inter/zmq_socket.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>
#include <tuple>
#include <utility>

#include "inter/zmq_lane.h"
#include "tests/inter/free_ports.h"
#include "tests/inter/tcp_proxy.h"

namespace isthmus::inter {
namespace {

bool comes_true(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (std::chrono::steady_clock::now() < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// libzmq's I/O thread waited for the reader of the events that there no longer was, and every
// connection of the process with it.
TEST(SocketMonitor, ThatIsClosedHoldsUpNothing) {
  auto theirs = *ZmqContext::make(1, 16);
  auto ours = *ZmqContext::make(1, 16);
  const auto listener = [&] {
    auto socket = *ZmqSocket::open(*theirs, ZMQ_PULL);
    EXPECT_TRUE(socket.bind("tcp://127.0.0.1:*"));
    return socket;
  };
  const auto dialer = [&](ZmqSocket& to) {
    auto socket = *ZmqSocket::open(*ours, ZMQ_PUSH);
    EXPECT_TRUE(socket.set(ZMQ_RECONNECT_IVL, -1));
    return std::pair(std::move(socket), *to.last_endpoint());
  };
  auto first = listener();
  auto [watched, endpoint] = dialer(first);
  auto monitor = *SocketMonitor::make(*ours, watched, ZMQ_EVENT_ALL);
  EXPECT_TRUE(watched.connect(endpoint));
  ASSERT_TRUE(comes_true([&] {
    const auto event = monitor.next();
    return event && event->event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
  }));
  monitor.close();
  first.close();  // an event that nobody reads
  std::this_thread::sleep_for(std::chrono::milliseconds(100));

  auto second = listener();
  auto [other, other_endpoint] = dialer(second);
  EXPECT_TRUE(other.connect(other_endpoint));
  ZmqMessage word(std::string_view("word")), heard;
  EXPECT_TRUE(comes_true([&] { return other.send(word) == 0; }));
  const bool arrived = comes_true([&] { return second.receive(heard); });
  EXPECT_TRUE(arrived);
  if (!arrived) std::ignore = ours.release();  // its end would be waited for without end
}

// ZeroMQ's own heartbeats ended the process here (libzmq issues 4364 and 4841): so did each stop of
// a gateway that lasted until its peers had given its connections up.
TEST(ControlLane, AResetOfAConnectionWhoseQueueIsFullEndsNoProcess) {
  ZmqWireOptions options;
  options.heartbeat_interval = 100 * kMillisecond;
  options.control_queue = 4;
  auto ours = *ZmqContext::make(1, 16);
  auto theirs = *ZmqContext::make(1, 16);
  auto reader = *ZmqSocket::open(*ours, ZMQ_PULL);
  EXPECT_TRUE(set_control_options(reader, options));
  const auto listens = free_port_pair();
  const auto passes = static_cast<std::uint16_t>(listens + 1);
  EXPECT_TRUE(reader.bind(fmt::format("tcp://127.0.0.1:{}", listens)));
  TcpProxy proxy(passes, listens);
  auto writer = *ZmqSocket::open(*theirs, ZMQ_PUSH);
  EXPECT_TRUE(writer.set(ZMQ_RECONNECT_IVL, -1));
  EXPECT_TRUE(writer.connect(fmt::format("tcp://127.0.0.1:{}", passes)));
  constexpr int kMessages = 100, kBytes = 1000;
  for (int i = 0; i < kMessages; ++i) {
    ZmqMessage message{Bytes(kBytes)};
    EXPECT_EQ(writer.send(message), 0);
  }
  EXPECT_TRUE(
      comes_true([&] { return proxy.bytes(Direction::to_listener) >= kMessages * kBytes; }));
  proxy.cut();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  ZmqMessage message;
  EXPECT_TRUE(comes_true([&] { return reader.receive(message); }));
}

}  // namespace
}  // namespace isthmus::inter

#include "inter/zmq_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/ip_icmp.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

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

// A port of 127.0.0.1 of which nobody answers a SYN, and a router before it that says "protocol
// unreachable". Root's.
class UnreachablePort {
 public:
  UnreachablePort() {
    // Who waits in its queue fills it.
    EXPECT_EQ(::bind(listener_, own_address(), sizeof address_), 0);
    EXPECT_EQ(::listen(listener_, 0), 0);
    socklen_t size = sizeof address_;
    EXPECT_EQ(::getsockname(listener_, own_address(), &size), 0);
    EXPECT_EQ(::connect(waiting_, address(), sizeof address_), 0);
    sockaddr_in own{};
    EXPECT_EQ(::getsockname(waiting_, reinterpret_cast<sockaddr*>(&own), &size), 0);
    answered_.insert(own.sin_port);
  }
  ~UnreachablePort() {
    for (const int descriptor : {listener_, waiting_, segments_, errors_}) ::close(descriptor);
  }
  UnreachablePort(const UnreachablePort&) = delete;
  UnreachablePort& operator=(const UnreachablePort&) = delete;

  static bool possible() {
    const int raw = ::socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
    return raw >= 0 && ::close(raw) == 0;
  }
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&address_); }
  std::uint16_t port() const { return ntohs(address_.sin_port); }

  // Of one more port. False: none came.
  bool answer_a_syn() {
    std::array<std::byte, 1500> packet{};
    while (true) {
      const auto size = ::recv(segments_, packet.data(), packet.size(), MSG_DONTWAIT);
      if (size < 40) return false;
      tcphdr tcp{};
      const auto header =
          static_cast<std::size_t>(std::to_integer<int>(packet[0] & std::byte{15})) * 4;
      std::memcpy(&tcp, &packet[header], sizeof tcp);
      if (tcp.dest != address_.sin_port || tcp.syn == 0 || tcp.ack != 0 ||
          !answered_.insert(tcp.source).second)
        continue;
      // Type, code, checksum, nothing; the packet's IP header and eight bytes.
      std::vector<std::byte> error(8);
      error[0] = std::byte{ICMP_DEST_UNREACH};
      error[1] = std::byte{ICMP_PROT_UNREACH};
      error.insert(error.end(), packet.begin(),
                   packet.begin() + static_cast<std::ptrdiff_t>(header) + 8);
      std::uint32_t sum = 0;
      for (std::size_t i = 0; i < error.size(); i += 2) {
        std::uint16_t word = 0;
        std::memcpy(&word, &error[i], sizeof word);
        sum += word;
      }
      while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
      const auto checksum = static_cast<std::uint16_t>(~sum);
      std::memcpy(&error[2], &checksum, sizeof checksum);
      return ::sendto(errors_, error.data(), error.size(), 0, address(), sizeof address_) ==
             static_cast<ssize_t>(error.size());
    }
  }

 private:
  sockaddr* own_address() { return reinterpret_cast<sockaddr*>(&address_); }

  sockaddr_in address_{
      .sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  std::set<std::uint16_t> answered_;  // ports, as TCP writes them
  const int listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
  const int waiting_ = ::socket(AF_INET, SOCK_STREAM, 0);
  const int segments_ = ::socket(AF_INET, SOCK_RAW, IPPROTO_TCP);
  const int errors_ = ::socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
};

TEST(ZmqSocket, AnAnswerThatNobodySpeaksTcpThereEndsNoProcess) {
  if (!UnreachablePort::possible()) GTEST_SKIP() << "SKIPPED: only root sends such an answer";
  UnreachablePort port;
  // What the answer does to a socket of ours.
  const int plain = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  EXPECT_EQ(::connect(plain, port.address(), sizeof(sockaddr_in)), -1);
  EXPECT_EQ(errno, EINPROGRESS);
  EXPECT_TRUE(comes_true([&] { return port.answer_a_syn(); }));
  int error = 0;
  EXPECT_TRUE(comes_true([&] {
    socklen_t size = sizeof error;
    return ::getsockopt(plain, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error != 0;
  }));
  EXPECT_EQ(error, EHOSTUNREACH);
  ::close(plain);

  auto context = *ZmqContext::make(1, 16);
  auto dialer = *ZmqSocket::open(*context, ZMQ_PUSH);
  EXPECT_TRUE(dialer.set(ZMQ_RECONNECT_IVL, -1));
  auto monitor = *SocketMonitor::make(*context, dialer, ZMQ_EVENT_CLOSED);
  EXPECT_TRUE(dialer.connect(fmt::format("tcp://127.0.0.1:{}", port.port())));
  EXPECT_TRUE(comes_true([&] { return port.answer_a_syn(); }));
  EXPECT_TRUE(comes_true([&] { return monitor.next().has_value(); }));
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

// The same, when it was a peer's heartbeat that it read and answered after the reset.
TEST(ControlLane, AHeartbeatOfZeroMqBeforeAResetEndsNoProcess) {
  ZmqWireOptions options;
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
  EXPECT_TRUE(writer.set(ZMQ_HEARTBEAT_IVL, 1));
  EXPECT_TRUE(writer.set(ZMQ_HEARTBEAT_TIMEOUT, 10'000));
  EXPECT_TRUE(writer.connect(fmt::format("tcp://127.0.0.1:{}", passes)));
  ZmqMessage first{Bytes(8)}, message;
  EXPECT_EQ(writer.send(first), 0);
  EXPECT_TRUE(comes_true([&] { return reader.receive(message); }));
  proxy.stall(true);  // so that all is read at once
  constexpr int kMessages = 400;
  for (int i = 0; i < kMessages; ++i) {
    ZmqMessage each{Bytes(8)};
    EXPECT_EQ(writer.send(each), 0);
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  proxy.stall(false);
  EXPECT_TRUE(comes_true([&] { return proxy.bytes(Direction::to_listener) >= kMessages * 10; }));
  proxy.cut();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  int came = 0;
  while (came < 8 && comes_true([&] { return reader.receive(message); })) ++came;
  EXPECT_EQ(came, 8);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
}

}  // namespace
}  // namespace isthmus::inter

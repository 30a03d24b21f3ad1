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
#include <memory>
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
// unreachable".
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
  if (!UnreachablePort::possible())
    GTEST_SKIP() << "SKIPPED: needs the capability to send raw packets, as root has it";
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

// A connection of control lanes that nobody reads, and that is reset. libzmq ended the process (its
// issues 4364 and 4841) where a heartbeat of ZeroMQ's was due on it, or was asked for by the peer,
// while its queue was full.
class UnreadControlLane : public testing::Test {
 protected:
  UnreadControlLane() {
    ZmqWireOptions options;
    options.heartbeat_interval = 100 * kMillisecond;
    options.control_queue = 4;
    EXPECT_TRUE(set_control_options(reader_, options));
    EXPECT_TRUE(reader_.bind(fmt::format("tcp://127.0.0.1:{}", listens_)));
    EXPECT_TRUE(writer_.set(ZMQ_RECONNECT_IVL, -1));
  }

  void connect() { EXPECT_TRUE(writer_.connect(fmt::format("tcp://127.0.0.1:{}", passes_))); }
  void send(std::size_t bytes) {
    ZmqMessage message{Bytes(bytes)};
    EXPECT_EQ(writer_.send(message), 0);
  }
  bool receive() {
    ZmqMessage message;
    return comes_true([&] { return reader_.receive(message); });
  }
  void reset_after(std::uint64_t bytes) {
    EXPECT_TRUE(comes_true([&] { return proxy_.bytes(Direction::to_listener) >= bytes; }));
    proxy_.cut();
  }

  const std::uint16_t listens_ = free_port_pair();
  const std::uint16_t passes_ = static_cast<std::uint16_t>(listens_ + 1);
  std::unique_ptr<ZmqContext> ours_ = *ZmqContext::make(1, 16), theirs_ = *ZmqContext::make(1, 16);
  ZmqSocket reader_ = *ZmqSocket::open(*ours_, ZMQ_PULL);
  ZmqSocket writer_ = *ZmqSocket::open(*theirs_, ZMQ_PUSH);
  TcpProxy proxy_{passes_, listens_};
};

// So did each stop of a gateway that lasted until its peers had given its connections up.
TEST_F(UnreadControlLane, EndsNoProcessWhenItsHeartbeatIsDue) {
  connect();
  constexpr int kMessages = 100, kBytes = 1000;
  for (int i = 0; i < kMessages; ++i) send(kBytes);
  reset_after(kMessages * kBytes);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_TRUE(receive());
}

TEST_F(UnreadControlLane, EndsNoProcessWhenAHeartbeatIsAnswered) {
  EXPECT_TRUE(writer_.set(ZMQ_HEARTBEAT_IVL, 1));
  EXPECT_TRUE(writer_.set(ZMQ_HEARTBEAT_TIMEOUT, 10'000));
  connect();
  send(8);
  EXPECT_TRUE(receive());
  proxy_.stall(true);  // so that all is read at once
  constexpr int kMessages = 400;
  for (int i = 0; i < kMessages; ++i) {
    send(8);
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  proxy_.stall(false);
  reset_after(kMessages * 10);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(receive());
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
}

}  // namespace
}  // namespace isthmus::inter

// Two gateways on real wires, each counting what reaches it; with proxies in between where a
// test disturbs the network.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "inter/tcp_address.h"
#include "tests/inter/free_ports.h"
#include "tests/inter/tcp_proxy.h"
#include "tests/inter/zmq_world.h"

namespace isthmus::inter {

inline constexpr std::array kLanes{Lane::control, Lane::bulk};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

class Counter : public WireReceiver {
 public:
  void on_message(GatewayId, Lane lane, ConnectionId, const SharedBytes& message) override {
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
  void on_writable(GatewayId, Lane, ConnectionId) override {}

  bool up() { return !live[Lane::control].empty() && !live[Lane::bulk].empty(); }
  bool down() { return live[Lane::control].empty() && live[Lane::bulk].empty(); }

  std::map<Lane, std::set<ConnectionId>> live;
  std::map<Lane, int> downs;
  std::size_t messages = 0;
  std::size_t whole = 0;
  std::size_t damaged = 0;  // bytes that are not 0x5a
  Bytes last;
};

inline Bytes message_of(std::size_t size) { return Bytes(size, std::byte{0x5a}); }

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
  // A sanitizer makes tens of megabytes take longer.
  static constexpr Nanoseconds kPatience = kSanitized ? 60 * kSecond : 10 * kSecond;
  bool wait(const std::function<bool()>& condition, Nanoseconds at_most = kPatience) {
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

inline std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

inline int connect_tcp(std::uint16_t port) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  EXPECT_EQ(::connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return descriptor;
}

}  // namespace isthmus::inter

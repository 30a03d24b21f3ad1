#include "tests/inter/free_ports.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>

namespace isthmus::inter {
namespace {

// A bound socket, or -1 when the port is taken.
int bind_loopback(std::uint16_t port) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  if (::bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    ::close(descriptor);
    return -1;
  }
  return descriptor;
}

bool is_free(std::uint16_t port) {
  const int descriptor = bind_loopback(port);
  if (descriptor < 0) return false;
  ::close(descriptor);
  return true;
}

// Trying a port takes it for a moment, in which whoever was given it could not listen. So each has
// an owner: who holds the name, which the system frees when the process ends. Names of abstract
// sockets are of a network namespace, as ports are.
class PortName {
 public:
  explicit PortName(std::uint16_t port)
      : descriptor_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const auto name = fmt::format("isthmus-test-port-{}", port);
    name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    held_ = ::bind(descriptor_, reinterpret_cast<sockaddr*>(&address), size) == 0;
  }
  ~PortName() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  PortName(const PortName&) = delete;
  PortName& operator=(const PortName&) = delete;

  bool held() const { return held_; }
  // For as long as the process lives.
  void keep() { descriptor_ = -1; }

 private:
  int descriptor_;
  bool held_ = false;
};

// Not where the system takes ports for sockets that connect: who listens later would find one of
// those in its place.
std::uint16_t end_of_ports() {
  int first_of_system = 32'768;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first_of_system;
  return static_cast<std::uint16_t>(std::clamp(first_of_system, 11'000, 32'768));
}

}  // namespace

std::uint16_t free_port_pair() {
  constexpr std::uint16_t kFirst = 10'000;
  static const std::uint16_t end = end_of_ports();
  static std::mt19937 draws(std::random_device{}());
  for (int i = 0; i < 10'000; ++i) {
    const auto port =
        static_cast<std::uint16_t>(std::uniform_int_distribution<int>(kFirst, end - 2)(draws));
    const auto next = static_cast<std::uint16_t>(port + 1);
    PortName name(port);
    PortName next_name(next);
    if (!name.held() || !next_name.held() || !is_free(port) || !is_free(next)) continue;
    name.keep();
    next_name.keep();
    return port;
  }
  throw std::runtime_error("no two neighbouring ports are free on loopback");
}

}  // namespace isthmus::inter

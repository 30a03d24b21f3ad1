#include "tests/inter/free_ports.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <set>

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

}  // namespace

// Not where the system takes ports for sockets that connect: who listens later would find one of
// those in its place.
std::uint16_t free_port_pair() {
  constexpr std::uint16_t kFirst = 10'000, kEnd = 32'000;
  static std::set<std::uint16_t> given;
  static std::mt19937 draws(std::random_device{}());
  for (;;) {
    const auto port =
        static_cast<std::uint16_t>(std::uniform_int_distribution<int>(kFirst, kEnd)(draws));
    const auto next = static_cast<std::uint16_t>(port + 1);
    if (given.contains(port) || given.contains(next)) continue;
    const int first = bind_loopback(port);
    const int second = first < 0 ? -1 : bind_loopback(next);
    if (first >= 0) ::close(first);
    if (second >= 0) ::close(second);
    if (second < 0) continue;
    given.insert({port, next});
    return port;
  }
}

}  // namespace isthmus::inter

#include "tests/inter/free_ports.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <set>

namespace isthmus::inter {
namespace {

// A bound socket, or -1 when the port is taken; port 0 lets the system choose.
int bind_loopback(std::uint16_t& port) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  socklen_t size = sizeof address;
  if (::bind(descriptor, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    ::close(descriptor);
    return -1;
  }
  port = ntohs(address.sin_port);
  return descriptor;
}

}  // namespace

std::uint16_t free_port_pair() {
  static std::set<std::uint16_t> given;
  for (;;) {
    std::uint16_t port = 0;
    const int first = bind_loopback(port);
    auto next = static_cast<std::uint16_t>(port + 1);
    const int second = first < 0 || port == 65535 ? -1 : bind_loopback(next);
    if (first >= 0) ::close(first);
    if (second >= 0) ::close(second);
    if (second >= 0 && !given.contains(port) && !given.contains(next)) {
      given.insert({port, next});
      return port;
    }
  }
}

}  // namespace isthmus::inter

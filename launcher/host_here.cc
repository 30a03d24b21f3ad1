#include "launcher/host_here.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

namespace isthmus::launcher {

bool is_host_here(const std::string& host) {
  if (host == "*") return true;
  addrinfo wish{};
  wish.ai_socktype = SOCK_DGRAM;
  wish.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &wish, &found) != 0) return false;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> address(found, ::freeaddrinfo);
  // At any free port, of UDP, which disturbs nobody.
  const int descriptor = ::socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return true;
  const bool refused =
      ::bind(descriptor, address->ai_addr, address->ai_addrlen) != 0 && errno == EADDRNOTAVAIL;
  ::close(descriptor);
  return !refused;
}

}  // namespace isthmus::launcher

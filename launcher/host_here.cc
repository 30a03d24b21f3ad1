#include "launcher/host_here.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <memory>

namespace isthmus::launcher {
namespace {

// At any free port, of UDP, which disturbs nobody.
bool is_ours(addrinfo address) {
  const int descriptor = ::socket(address.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return true;  // not knowable
  const bool refused =
      ::bind(descriptor, address.ai_addr, address.ai_addrlen) != 0 && errno == EADDRNOTAVAIL;
  ::close(descriptor);
  return !refused;
}

}  // namespace

HostHere look_up_here(const std::string& host) {
  if (host == "*" || ::if_nametoindex(host.c_str()) != 0) return HostHere::here;
  addrinfo wish{};
  wish.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &wish, &found) != 0) return HostHere::unknown;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  for (const auto* address = found; address != nullptr; address = address->ai_next)
    if (is_ours(*address)) return HostHere::here;
  return HostHere::elsewhere;
}

bool can_be_host(const std::string& host) {
  in_addr v4{};
  in6_addr v6{};
  if (host.find_first_not_of("0123456789.") == std::string::npos)
    return ::inet_pton(AF_INET, host.c_str(), &v4) == 1;
  if (const auto scope = host.find('%'); host.find(':') != std::string::npos)
    return ::inet_pton(AF_INET6, host.substr(0, scope).c_str(), &v6) == 1;
  return host == "*" || (std::isalnum(static_cast<unsigned char>(host.front())) != 0 &&
                         host.find("..") == std::string::npos && host.size() <= 253);
}

}  // namespace isthmus::launcher

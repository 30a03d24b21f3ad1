// TcpAddress: "host:port" as people write it, IPv6 as "[…]:port", and what ZeroMQ calls an
// endpoint. A lane's port follows from the control port: bulk is the next one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "inter/wire.h"

namespace isthmus::inter {

struct TcpAddress {
  std::string host;  // a name, a literal without brackets, or "*": every interface, IPv6 and IPv4
  std::uint16_t port = 0;

  bool operator==(const TcpAddress&) const = default;
  bool is_ipv6() const { return host.find(':') != std::string::npos; }
  // "tcp://host:port"
  std::string endpoint() const;
};

// The control address. Errors: invalid_argument; the port leaves room for the bulk lane's.
Result<TcpAddress> parse_tcp_address(std::string_view text);

TcpAddress lane_address(const TcpAddress& control, Lane lane);

// How this machine reaches what it listens on itself: "any interface" becomes a loopback address.
TcpAddress local_address(const TcpAddress& listening);

}  // namespace isthmus::inter

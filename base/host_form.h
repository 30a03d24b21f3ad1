// What the host of "host:port" is, by how it is written: nobody is asked whether it is there.
#pragma once

#include <cstdint>
#include <string_view>

namespace isthmus {

enum class HostForm : std::uint8_t {
  none,        // on no machine: a number that is none, as "300.1.1.1", or what cannot be a name
  name,        // of a host, or of a network interface
  number,      // an address of IPv4, or of IPv6, without brackets
  every,       // "0.0.0.0", "::" or "*": all addresses of a machine, to listen at
  link_local,  // of IPv6, on one link alone: "fe80::1%eth0", where each machine has its own scopes
};

HostForm form_of_host(std::string_view host);

}  // namespace isthmus

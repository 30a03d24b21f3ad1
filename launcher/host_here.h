// Whether a gateway on this machine could listen at a host's address; what is knowable of that
// without listening.
#pragma once

#include <cstdint>
#include <string>

namespace isthmus::launcher {

enum class HostHere : std::uint8_t {
  here,
  elsewhere,  // no address of this machine
  unknown,    // a name that this machine finds no address for
};

// `host`: a number, a name or a network interface. Asks the name service, which may take seconds.
HostHere look_up_here(const std::string& host);

// Whether it can be a host on any machine: no number that is none ("300.1.1.1").
bool can_be_host(const std::string& host);

}  // namespace isthmus::launcher

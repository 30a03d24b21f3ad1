// Ports for tests and benchmarks that listen on loopback.
#pragma once

#include <cstdint>

namespace isthmus::inter {

// A free port whose successor is free too. Both are this process's as long as it lives: no other
// one that asks here gets them. Throws where there is none.
std::uint16_t free_port_pair();

}  // namespace isthmus::inter

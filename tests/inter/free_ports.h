// Ports for tests and benchmarks that listen on loopback.
#pragma once

#include <cstdint>

namespace isthmus::inter {

// A free port whose successor is free too; not given twice by this process, nor, as far as the
// system can tell, to another.
std::uint16_t free_port_pair();

}  // namespace isthmus::inter

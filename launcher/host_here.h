// Whether a gateway on this machine could listen at an address; what is knowable of that without
// listening.
#pragma once

#include <string>

namespace isthmus::launcher {

// `host`: an address in numbers, or "*". What cannot be known counts as here.
bool is_host_here(const std::string& host);

}  // namespace isthmus::launcher

// How much memory this machine has, so that what cannot fit is refused with a sentence before it is
// allocated. The kernel would grant it, and end some process when it is touched.
#pragma once

#include <cstdint>

namespace isthmus {

// Bytes of physical memory.
std::uint64_t machine_memory_bytes();

}  // namespace isthmus

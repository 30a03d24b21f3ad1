// stream_copy: a copy past the caches, for results that are larger than these and that nobody reads
// soon. An ordinary store reads each line from memory before it writes it; this one does not, which
// saves a third of the traffic of a pass that writes as much as it reads.
#pragma once

#include <span>

namespace isthmus::kernels {

// to = from, of one size, which must not overlap. Other threads see it as after any other write.
void stream_copy(std::span<const float> from, std::span<float> to);

}  // namespace isthmus::kernels

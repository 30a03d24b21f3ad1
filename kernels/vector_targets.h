// Vector targets: the instruction sets that the kernels are compiled for, of which the best one the
// CPU has is chosen at the first call. For tests and benchmarks, which run each of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace isthmus::kernels {

struct VectorTarget {
  std::string name;  // "AVX3_DL", "AVX2", or the baseline
  std::int64_t id = 0;
};

// Compiled, and supported by this CPU; best first.
std::vector<VectorTarget> vector_targets();

// While it lives, all kernels of the process use this target. Not for use beside running kernels.
class ForcedVectorTarget {
 public:
  explicit ForcedVectorTarget(const VectorTarget& target);
  ~ForcedVectorTarget();
  ForcedVectorTarget(const ForcedVectorTarget&) = delete;
  ForcedVectorTarget& operator=(const ForcedVectorTarget&) = delete;
};

}  // namespace isthmus::kernels

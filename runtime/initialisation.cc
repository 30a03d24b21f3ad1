#include "runtime/initialisation.h"

#include <algorithm>

#include "base/random.h"

namespace isthmus::runtime {

void initialise_tensor(ThreadPool& pool, std::uint64_t seed, const CanonicalTensor& tensor,
                       std::span<float> values) {
  ISTHMUS_ASSERT(values.size() == tensor.elements());
  if (tensor.initial == Initial::ones) {
    std::fill(values.begin(), values.end(), 1.0F);
    return;
  }
  constexpr std::size_t kBlock = 16384;
  const auto random = Random(seed).split(tensor.name);
  pool.parallel_for((values.size() + kBlock - 1) / kBlock, [&](std::size_t task, std::size_t) {
    const auto end = std::min(values.size(), (task + 1) * kBlock);
    for (std::size_t i = task * kBlock; i < end; ++i)
      values[i] = static_cast<float>(random.normal_at(i) * kInitialDeviation);
  });
}

}  // namespace isthmus::runtime

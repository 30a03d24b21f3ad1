#include "runtime/initialisation.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace isthmus::runtime {

void initialise_tensor(ThreadPool& pool, std::uint64_t seed, const CanonicalTensor& tensor,
                       std::span<float> values) {
  ISTHMUS_ASSERT(values.size() == tensor.elements());
  if (tensor.initial == Initial::ones) {
    std::fill(values.begin(), values.end(), 1.0F);
    return;
  }
  if (tensor.initial == Initial::zeros) {
    std::fill(values.begin(), values.end(), 0.0F);
    return;
  }
  const bool uniform = tensor.initial == Initial::uniform;
  const double bound = 1 / std::sqrt(static_cast<double>(tensor.shape[tensor.shape.rank() - 1]));
  constexpr std::size_t kBlock = 16384;
  const auto random = Random(seed).split(tensor.name);
  pool.parallel_for((values.size() + kBlock - 1) / kBlock, [&](std::size_t task, std::size_t) {
    const auto end = std::min(values.size(), (task + 1) * kBlock);
    for (std::size_t i = task * kBlock; i < end; ++i)
      values[i] = static_cast<float>(uniform ? (2 * random.uniform_at(i) - 1) * bound
                                             : random.normal_at(i) * kInitialDeviation);
  });
}

}  // namespace isthmus::runtime

// Initial parameters: a function of (seed, tensor name, element), so that every site and every
// layout begins with the same model.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "runtime/canonical_tensor.h"

namespace isthmus::runtime {

inline constexpr double kInitialDeviation = 0.02;  // of matrices and embeddings

// Normal: Random(seed).split(name).normal_at(element) × deviation, rounded once. Ones: 1.
void initialise_tensor(ThreadPool& pool, std::uint64_t seed, const CanonicalTensor& tensor,
                       std::span<float> values);

}  // namespace isthmus::runtime

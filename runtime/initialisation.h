// Initial parameters: a function of (seed, tensor name, element), so that every site and every
// layout begins with the same model.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "runtime/canonical_tensor.h"

namespace isthmus::runtime {

inline constexpr double kInitialDeviation = 0.02;  // of matrices and embeddings

// With random = Random(seed).split(name), each rounded once. Normal: random.normal_at(element) ×
// deviation. Uniform: (2 random.uniform_at(element) − 1) / sqrt(columns). Ones, zeros: 1, 0.
void initialise_tensor(ThreadPool& pool, std::uint64_t seed, const CanonicalTensor& tensor,
                       std::span<float> values);

}  // namespace isthmus::runtime

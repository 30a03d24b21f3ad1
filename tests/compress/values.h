// Values and hostile bytes for the tests of this folder, from a seed.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "base/byte_stream.h"
#include "base/random.h"

namespace isthmus::compress {

// Normal, about as large as a pseudo-gradient, every 16th a hundred times as large.
inline std::vector<float> normal_values(std::size_t count, std::uint64_t seed) {
  const Random random(seed);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(random.normal_at(i) * (i % 16 == 0 ? 1e-1 : 1e-3));
  return values;
}

inline Bytes random_bytes(std::size_t count, std::uint64_t seed) {
  const Random random(seed);
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::byte>(random.block(i / 4)[i % 4] >> 7);
  return bytes;
}

}  // namespace isthmus::compress

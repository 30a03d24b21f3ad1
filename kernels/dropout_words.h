// DropoutWords: the mask of one sequence, as the vector code of dropout-inl.h wants it. Private to
// kernels/.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.h"
#include "kernels/dropout.h"

namespace isthmus::kernels {

struct DropoutWords {
  DropoutWords() = default;  // drops nothing
  DropoutWords(const DropoutMask& mask, std::int64_t sequence)
      : stream(mask.stream),
        dropped_below(static_cast<std::uint32_t>(static_cast<double>(mask.rate) * 0x1p32)),
        kept_times(static_cast<float>(1 / (1 - static_cast<double>(mask.rate)))) {
    const auto at = 2 * static_cast<std::size_t>(sequence);
    ISTHMUS_ASSERT(mask.rate >= 0 && mask.rate < 1 && at + 1 < mask.keys.size());
    low = static_cast<std::uint32_t>(mask.keys[at]);
    high = static_cast<std::uint32_t>(mask.keys[at + 1]);
  }

  bool drops() const { return dropped_below > 0; }

  std::uint32_t low = 0;
  std::uint32_t high = 0;
  std::uint32_t stream = 0;
  std::uint32_t dropped_below = 0;
  float kept_times = 1;
};

}  // namespace isthmus::kernels

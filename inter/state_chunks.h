// StateChunks: how a saved outer state goes to another site: as one transfer of the list of its
// leaves' hashes, then the leaves, a chunk each (PROTOCOL.md, "Return").
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "inter/model_layout.h"
#include "inter/outer_state.h"
#include "security/hash.h"

namespace isthmus::inter {

// A slow line takes minutes for a leaf: so long at most until the next one is whole, which suffices
// from 4 kB/s on with eight at once; below about 5 kB/s a site could not even keep its sessions.
inline constexpr Nanoseconds kLeafTakesMax = 2400 * kSecond;
// Without a byte.
inline constexpr Nanoseconds kLeafPauseMax = 120 * kSecond;

class StateChunks {
 public:
  static constexpr std::size_t kHashesMax = (1 << 20) / sizeof(security::Digest::bytes);

  StateChunks(const ModelLayout& layout, bool has_momentum)
      : leaves_(leaf_count(layout, has_momentum)) {}

  std::uint32_t of_list() const {
    return static_cast<std::uint32_t>((leaves_ + kHashesMax - 1) / kHashesMax);
  }
  std::uint32_t all() const { return of_list() + static_cast<std::uint32_t>(leaves_); }
  // Of leaves, in a chunk of the list.
  std::size_t hashes_in(std::uint32_t chunk) const {
    return std::min(kHashesMax, leaves_ - std::size_t{chunk} * kHashesMax);
  }

 private:
  std::size_t leaves_;
};

}  // namespace isthmus::inter

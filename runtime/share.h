// What the root of a site (its first rank, which has its files and its gateway) knows, at all ranks
// of the site. Called by all of them; at the others the values are replaced. Errors: those of the
// communicator.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "base/byte_stream.h"
#include "base/result.h"
#include "intra/communicator.h"
#include "runtime/outer_sync.h"

namespace isthmus::runtime {

inline constexpr int kRoot = 0;

template <class T>
requires std::is_arithmetic_v<T> Result<void> share(intra::Communicator& world, T& value) {
  return world.broadcast(std::as_writable_bytes(std::span(&value, 1)), kRoot);
}
template <class T>
requires std::is_trivially_copyable_v<T> Result<void> share(intra::Communicator& world,
                                                            std::vector<T>& values) {
  std::uint64_t size = values.size();
  ISTHMUS_CHECK(share(world, size));
  values.resize(size);
  return world.broadcast(std::as_writable_bytes(std::span(values)), kRoot);
}
Result<void> share(intra::Communicator& world, OuterState& state);

}  // namespace isthmus::runtime

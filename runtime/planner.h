// The planner lays out one arena for all activations and gradients of a program: each value has a
// place while the list still needs it, and values whose lifetimes do not meet share bytes.
//
//   bytes ▲                ┌────────────────┐
//         │   ┌────────────┤   x4           │
//         │   │ h2         └─────┬──────────┤
//         │ ┌─┴──────────────────┤  dh2     │
//         │ │ x1                 └──────────┤
//         └─┴───────────────────────────────┴──▶ position in the list
//
// Largest first, each at the lowest offset that is free throughout its life: best-fit after
// Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020).
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "runtime/program.h"

namespace isthmus::runtime {

inline constexpr std::size_t kNoOffset = std::numeric_limits<std::size_t>::max();
inline constexpr std::size_t kPlaceAlignment = 64;  // bytes

struct Plan {
  std::vector<std::size_t> offsets;  // per value; kNoOffset for those that do not live in the arena
  std::size_t arena_bytes = 0;
  std::size_t value_bytes = 0;  // what the values would take if none shared
};

// Positions at which a value is first and last read or written; first > last: never.
struct Lifetime {
  std::size_t first = std::numeric_limits<std::size_t>::max();
  std::size_t last = 0;
};

std::vector<Lifetime> lifetimes(const Program& program);
bool lives_in_arena(const Value& value);

Plan plan_memory(const Program& program);

}  // namespace isthmus::runtime

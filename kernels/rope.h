// Rotary position embedding (Su et al. 2021) in Hugging Face's half-split convention: within a head
// of size d, element i is rotated with element i + d/2 by position * frequency[i]. In place.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/rows.h"

namespace isthmus::kernels {

// Fills table [positions, head_dim]: cos of the d/2 angles, then sin, all times `amplitude`. In
// f64, rounded once. frequencies [d/2], in radians per position.
void rope_table(std::span<const double> frequencies, double amplitude, std::int64_t positions,
                std::span<float> table);

enum class RopeDirection : std::uint8_t { forward, backward };  // backward rotates back

// x [tokens, heads * head_dim], rotated head by head. positions [tokens], each below the table's
// positions; empty: row r has position r % sequence.
void rope(ThreadPool& pool, const Rows& x, std::int64_t head_dim,
          std::span<const std::int32_t> positions, std::int64_t sequence,
          std::span<const float> table, RopeDirection direction);

}  // namespace isthmus::kernels

// OuterState: the last agreed parameters and the outer optimizer's momentum, in canonical form. A
// function of the records and of the bytes that they name, in arithmetic that is equal everywhere
// (kernels/outer_arithmetic.h), so that sites end bit-identical.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/large_vector.h"
#include "inter/contribution.h"
#include "inter/record.h"
#include "kernels/leaf_hash.h"

namespace isthmus::inter {

struct OuterState {
  std::uint64_t step = 0;
  security::Digest record;      // that led here; the run's id for step 0
  LargeVector<float> agreed;    // layout order
  LargeVector<float> momentum;  // empty when the rule has none
};

// The leaves of a state: those of the layout over the agreed parameters, then those over the
// momentum, if any.
std::size_t leaf_count(const ModelLayout& layout, bool has_momentum);
std::span<const std::byte> leaf_bytes(const ModelLayout& layout, const OuterState& state,
                                      std::size_t leaf);
std::span<std::byte> leaf_bytes(const ModelLayout& layout, OuterState& state, std::size_t leaf);

// State root: a binary tree of BLAKE2b over XXH3-128 leaves (PROTOCOL.md, "State root"). Leaves in
// the order above.
security::Digest state_root(std::span<const kernels::Hash128> leaves);
security::Digest state_root(const ModelLayout& layout, const OuterState& state);

// A leaf's strong hash: BLAKE2b over its length and the BLAKE2s of its columns
// (kernels/blake2s_columns.h), of which vectors make sixteen at once.
security::Digest strong_leaf(std::span<const std::byte> bytes);

// The strong root, for state that is served or checkpointed: BLAKE2b over the list of the strong
// leaves. The list travels first, so that every leaf is checked as it arrives.
std::vector<security::Digest> strong_leaves(const ModelLayout& layout, const OuterState& state);
security::Digest strong_root(std::span<const security::Digest> leaves);

// BLAKE2b over a sixteenth of the strong leaves, another one each step: what XXH3 does not see,
// sixteen steps do. Leaves i with i ≡ step (mod 16).
security::Digest spot_root(const ModelLayout& layout, const OuterState& state);

// A part of a range of a chunk, after the outer step.
struct NewTile {
  const ElementRange& range;        // of the chunk
  std::uint64_t first = 0;          // element of the range
  std::span<const float> agreed;    // from there on
  std::span<const float> momentum;  // empty when the rule has none
};
using TileDone = std::function<void(const NewTile& tile)>;

// The outer step of the elements of chunk `chunk`, from `before` into `after` (which has the same
// sizes, and may be the same): Σ w·decode(part), in the record's order, then the rule. `parts`:
// this chunk of each of them, at least one. The chunks of a plan are independent of each other: any
// order, any thread. `done`, if any, is shown each new tile, in order, while it is in a cache:
// `after` itself is written past the caches. Errors: bad_frame.
Result<void> step_chunk(const ChunkPlan& plan, std::uint32_t chunk, std::span<const float> weights,
                        std::span<const CodedChunk> parts, const OuterRule& rule,
                        const OuterState& before, OuterState& after, const TileDone& done = {});

}  // namespace isthmus::inter

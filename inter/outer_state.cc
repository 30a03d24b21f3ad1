#include "inter/outer_state.h"

#include <algorithm>
#include <array>

#include "base/assert.h"
#include "kernels/blake2s_columns.h"
#include "kernels/outer_arithmetic.h"
#include "kernels/outer_step.h"

namespace isthmus::inter {
namespace {

std::pair<std::size_t, bool> place_of(const ModelLayout& layout, std::size_t leaf) {
  const auto count = layout.leaves().size();
  return leaf < count ? std::pair(leaf, false) : std::pair(leaf - count, true);
}

}  // namespace

std::size_t leaf_count(const ModelLayout& layout, bool has_momentum) {
  return layout.leaves().size() * (has_momentum ? 2 : 1);
}

std::span<const std::byte> leaf_bytes(const ModelLayout& layout, const OuterState& state,
                                      std::size_t leaf) {
  const auto [i, momentum] = place_of(layout, leaf);
  const auto& range = layout.leaves()[i];
  return std::as_bytes(std::span(momentum ? state.momentum : state.agreed)
                           .subspan(layout.offset(range), range.count));
}

std::span<std::byte> leaf_bytes(const ModelLayout& layout, OuterState& state, std::size_t leaf) {
  const auto [i, momentum] = place_of(layout, leaf);
  const auto& range = layout.leaves()[i];
  return std::as_writable_bytes(std::span(momentum ? state.momentum : state.agreed)
                                    .subspan(layout.offset(range), range.count));
}

security::Digest state_root(std::span<const kernels::Hash128> leaves) {
  ISTHMUS_ASSERT(!leaves.empty());
  std::vector<security::Digest> level;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    ByteWriter node;
    node.put(std::uint8_t{0})
        .put(static_cast<std::uint64_t>(i))
        .put(leaves[i].low)
        .put(leaves[i].high);
    level.push_back(security::blake2b(node.view()));
  }
  while (level.size() > 1) {
    std::vector<security::Digest> above;
    for (std::size_t i = 0; i < level.size(); i += 2) {
      if (i + 1 == level.size()) {
        above.push_back(level[i]);
        continue;
      }
      ByteWriter node;
      node.put(std::uint8_t{1}).raw(level[i].bytes).raw(level[i + 1].bytes);
      above.push_back(security::blake2b(node.view()));
    }
    level = std::move(above);
  }
  return level[0];
}

security::Digest state_root(const ModelLayout& layout, const OuterState& state) {
  std::vector<kernels::Hash128> leaves(leaf_count(layout, !state.momentum.empty()));
  for (std::size_t i = 0; i < leaves.size(); ++i)
    leaves[i] = kernels::leaf_hash(leaf_bytes(layout, state, i));
  return state_root(leaves);
}

security::Digest strong_leaf(std::span<const std::byte> bytes) {
  security::Hasher hasher;
  hasher.update(ByteWriter().put(static_cast<std::uint64_t>(bytes.size())).view());
  hasher.update(kernels::blake2s_columns(bytes));
  return hasher.finish();
}

std::vector<security::Digest> strong_leaves(const ModelLayout& layout, const OuterState& state) {
  std::vector<security::Digest> leaves(leaf_count(layout, !state.momentum.empty()));
  for (std::size_t i = 0; i < leaves.size(); ++i)
    leaves[i] = strong_leaf(leaf_bytes(layout, state, i));
  return leaves;
}

security::Digest strong_root(std::span<const security::Digest> leaves) {
  security::Hasher hasher;
  hasher.update(bytes_of("isthmus strong root v1"));
  for (const auto& leaf : leaves) hasher.update(leaf.bytes);
  return hasher.finish();
}

security::Digest spot_root(const ModelLayout& layout, const OuterState& state) {
  constexpr std::uint64_t kStride = 16;
  security::Hasher hasher;
  hasher.update(bytes_of("isthmus spot root v1"));
  for (auto i = static_cast<std::size_t>(state.step % kStride);
       i < leaf_count(layout, !state.momentum.empty()); i += kStride)
    hasher.update(strong_leaf(leaf_bytes(layout, state, i)).bytes);
  return hasher.finish();
}

Result<void> step_chunk(const ChunkPlan& plan, std::uint32_t chunk, std::span<const float> weights,
                        std::span<const CodedChunk> parts, const OuterRule& rule,
                        const OuterState& before, OuterState& after, const TileDone& done) {
  ISTHMUS_ASSERT(kernels::float_environment_is_ieee() && !parts.empty() &&
                 weights.size() == parts.size());
  std::array<float, compress::kTileElements> agreed, momenta;
  std::vector<compress::Codec::WeightedFrame> frames(parts.size());
  const auto first_part = parts[0].bytes();
  const auto step = [&](const ElementRange& range, std::span<const std::byte> frame,
                        std::uint64_t first, std::uint64_t count) -> Result<void> {
    const auto frame_at = static_cast<std::size_t>(frame.data() - first_part.data());
    for (std::size_t i = 0; i < parts.size(); ++i)
      frames[i] = {parts[i].bytes().subspan(frame_at, frame.size()), weights[i]};
    const auto at = plan.layout().offset(range) + first;
    const auto of = [&](auto& values) { return std::span(values).subspan(at, count); };
    kernels::OuterStep tile{.agreed = of(before.agreed),
                            .momentum = {},
                            .next_agreed = of(after.agreed),
                            .next_momentum = {},
                            .agreed_at_hand = std::span(agreed).first(count),
                            .momentum_at_hand = {}};
    if (rule.has_momentum()) {
      tile.nesterov = {rule.rate, rule.momentum};
      tile.momentum = of(before.momentum);
      tile.next_momentum = of(after.momentum);
      tile.momentum_at_hand = std::span(momenta).first(count);
    }
    ISTHMUS_CHECK(plan.frames().decode_step(frames, range.count, first, tile));
    if (done) done({range, first, tile.agreed_at_hand, tile.momentum_at_hand});
    return {};
  };
  return plan.each_tile(chunk, first_part, step);
}

}  // namespace isthmus::inter

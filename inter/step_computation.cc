#include "inter/step_computation.h"

#include <algorithm>
#include <optional>

#include "base/assert.h"

namespace isthmus::inter {

StepComputation::StepComputation(const ModelLayout& layout, std::shared_ptr<const ChunkPlan> plan,
                                 OuterRule rule, std::shared_ptr<const OuterState> before,
                                 Parts parts, std::vector<float> weights, OuterState after,
                                 std::shared_ptr<StateDraft> draft)
    : layout_(layout),
      plan_(std::move(plan)),
      rule_(rule),
      before_(std::move(before)),
      parts_(std::move(parts)),
      weights_(std::move(weights)),
      after_(std::move(after)),
      draft_(std::move(draft)),
      begun_(plan_->chunks()),
      first_leaf_(layout.tensors().size()),
      to_come_(layout.leaves().size()),
      leaves_(leaf_count(layout, rule.has_momentum())) {
  ISTHMUS_ASSERT(!parts_.empty() && weights_.size() == parts_.size());
  after_.agreed.resize(before_->agreed.size());
  after_.momentum.resize(before_->momentum.size());
  for (std::size_t leaf = layout.leaves().size(); leaf-- > 0;)
    first_leaf_[layout.leaves()[leaf].tensor] = leaf;
  for (std::uint32_t chunk = 0; chunk < plan_->chunks(); ++chunk)
    for (const auto& range : plan_->ranges(chunk))
      each_leaf_of(range, [this](std::size_t leaf) { ++to_come_[leaf]; });
}

template <class Body>
void StepComputation::each_leaf_of(const ElementRange& range, const Body& body) const {
  const auto last = (range.first + range.count - 1) / ModelLayout::kLeafElements;
  for (auto leaf = range.first / ModelLayout::kLeafElements; leaf <= last; ++leaf)
    body(first_leaf_[range.tensor] + leaf);
}

// Hashes each leaf that comes out of one chunk whole while its tiles are in the cache.
class StepComputation::LeavesInARow {
 public:
  explicit LeavesInARow(StepComputation& step) : step_(step) {}

  void add(const NewTile& tile) {
    const auto at = tile.range.first + tile.first;  // in the tensor
    const auto leaf = step_.first_leaf_[tile.range.tensor] + at / ModelLayout::kLeafElements;
    const auto& whole = step_.layout_.leaves()[leaf];
    if (at == whole.first) {
      leaf_ = leaf;
      next_ = at;
      agreed_.begin();
      momentum_.begin();
    }
    if (leaf_ != leaf || next_ != at) return;  // its beginning was another chunk's
    const bool has_momentum = step_.rule_.has_momentum();
    agreed_.update(std::as_bytes(tile.agreed));
    if (has_momentum) momentum_.update(std::as_bytes(tile.momentum));
    next_ += tile.agreed.size();
    if (next_ < whole.first + whole.count) return;
    step_.leaves_[leaf] = agreed_.finish();
    if (has_momentum) step_.leaves_[step_.layout_.leaves().size() + leaf] = momentum_.finish();
    hashed_.push_back(leaf);
    leaf_.reset();
  }
  bool hashed(std::size_t leaf) const { return std::ranges::count(hashed_, leaf) > 0; }

 private:
  StepComputation& step_;
  kernels::LeafHasher agreed_, momentum_;
  std::optional<std::size_t> leaf_;
  std::uint64_t next_ = 0;  // element of its tensor
  std::vector<std::size_t> hashed_;
};

bool StepComputation::begin(std::uint32_t chunk) {
  if (begun_[chunk]) return false;
  begun_[chunk] = true;
  ++running_;
  return true;
}

void StepComputation::ended(Result<void> result) {
  --running_;
  if (!result && result_) result_ = std::move(result);
}

Result<void> StepComputation::compute(std::uint32_t chunk, std::vector<CodedChunk> coded) {
  coded.resize(parts_.size());
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (coded[i]) continue;
    ISTHMUS_TRY(coded[i], parts_[i]->unpack(chunk));
  }
  LeavesInARow in_a_row(*this);
  const auto done = [&](const NewTile& tile) {
    in_a_row.add(tile);
    if (draft_) draft_->write(layout_.offset(tile.range) + tile.first, tile.agreed);
  };
  ISTHMUS_CHECK(step_chunk(*plan_, chunk, weights_, coded, rule_, *before_, after_, done));
  for (const auto& range : plan_->ranges(chunk))
    each_leaf_of(range, [&](std::size_t leaf) {
      const bool last = to_come_[leaf].fetch_sub(1, std::memory_order_acq_rel) == 1;
      if (last && !in_a_row.hashed(leaf)) hash_leaf(leaf);
    });
  return {};
}

void StepComputation::hash_leaf(std::size_t leaf) {
  leaves_[leaf] = kernels::leaf_hash(leaf_bytes(layout_, std::as_const(after_), leaf));
  if (!rule_.has_momentum()) return;
  const auto of_momentum = layout_.leaves().size() + leaf;
  leaves_[of_momentum] =
      kernels::leaf_hash(leaf_bytes(layout_, std::as_const(after_), of_momentum));
}

}  // namespace isthmus::inter

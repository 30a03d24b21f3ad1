#include "inter/step_computation.h"

#include "base/assert.h"

namespace isthmus::inter {

StepComputation::StepComputation(const ModelLayout& layout, std::shared_ptr<const ChunkPlan> plan,
                                 OuterRule rule, std::shared_ptr<const OuterState> before,
                                 Parts parts, std::vector<float> weights, OuterState after)
    : layout_(layout),
      plan_(std::move(plan)),
      rule_(rule),
      before_(std::move(before)),
      parts_(std::move(parts)),
      weights_(std::move(weights)),
      after_(std::move(after)),
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
  ISTHMUS_CHECK(step_chunk(*plan_, chunk, weights_, coded, rule_, *before_, after_));
  for (const auto& range : plan_->ranges(chunk))
    each_leaf_of(range, [this](std::size_t leaf) {
      if (to_come_[leaf].fetch_sub(1, std::memory_order_acq_rel) == 1) hash_leaf(leaf);
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

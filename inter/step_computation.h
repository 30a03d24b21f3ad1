// StepComputation: one outer step on its way, from a state into the next, chunk by chunk in any
// order, as soon as all parts of a chunk are here: most of a step is computed before it is decided.
// It counts only if it is of the record that is decided; which one that is, is for the gateway.
//
// begin() and what follows it on the loop; compute() on any thread, for different chunks at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "inter/outer_state.h"
#include "inter/ranks.h"

namespace isthmus::inter {

class StepComputation {
 public:
  using Parts = std::vector<std::shared_ptr<const Contribution>>;  // in the record's order

  // At least one part. `after`: memory to use again, or {}. `draft`, if any, gets the parameters.
  StepComputation(const ModelLayout& layout, std::shared_ptr<const ChunkPlan> plan, OuterRule rule,
                  std::shared_ptr<const OuterState> before, Parts parts, std::vector<float> weights,
                  OuterState after, std::shared_ptr<StateDraft> draft = {});

  const Parts& parts() const { return parts_; }
  const OuterState& before() const { return *before_; }

  // False: it was begun already. After it: compute(), then ended(), once.
  bool begin(std::uint32_t chunk);
  void ended(Result<void> result);
  // Chunks that were begun and have not ended.
  std::uint32_t running() const { return running_; }
  const Result<void>& result() const { return result_; }  // the first failure

  // `coded`: this chunk of the parts, as far as it is at hand. A leaf is hashed while it is
  // computed, or after the last of its chunks.
  Result<void> compute(std::uint32_t chunk, std::vector<CodedChunk> coded);

  // Once every chunk has ended well. The step and record of the state are the caller's to set.
  OuterState& after() { return after_; }
  const std::shared_ptr<StateDraft>& draft() const { return draft_; }
  const std::vector<kernels::Hash128>& leaves() const { return leaves_; }

 private:
  class LeavesInARow;
  template <class Body>
  void each_leaf_of(const ElementRange& range, const Body& body) const;
  void hash_leaf(std::size_t leaf);

  const ModelLayout& layout_;
  const std::shared_ptr<const ChunkPlan> plan_;  // shared with contributions
  const OuterRule rule_;
  const std::shared_ptr<const OuterState> before_;  // shared: the gateway may leave it for another
  const Parts parts_;
  const std::vector<float> weights_;
  OuterState after_;
  const std::shared_ptr<StateDraft> draft_;  // shared with the ranks, who may give it up
  std::vector<bool> begun_;
  std::uint32_t running_ = 0;
  Result<void> result_;
  std::vector<std::size_t> first_leaf_;              // by tensor
  std::vector<std::atomic<std::uint32_t>> to_come_;  // ranges of chunks, by leaf
  std::vector<kernels::Hash128> leaves_;
};

}  // namespace isthmus::inter

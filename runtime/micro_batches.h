// MicroBatches: which samples a rank computes, in which inner step. The samples of a run are one
// sequence; rank r takes the r-th of each run of world_size micro-batches. Where the model predicts
// hidden tokens, they come hidden.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"
#include "base/result.h"
#include "runtime/masking.h"
#include "runtime/program.h"
#include "runtime/text_dataset.h"

namespace isthmus::runtime {

class MicroBatches {
 public:
  // `data` and `masking` outlive it; without the latter tokens come as they are. `seed`: of all
  // that is drawn for a row.
  MicroBatches(const TextDataset& data, const BatchShape& shape, int rank, int world_size,
               std::uint64_t seed, const Masking* masking = nullptr);

  // Samples of all ranks' micro-batches together.
  std::uint64_t samples() const { return rows_ * world_size_; }

  // This rank's micro-batch number `micro` of the inner step that begins at sample `position`.
  // Errors: those of the data.
  Result<void> read(std::uint64_t position, std::int64_t micro);
  std::span<const std::int32_t> tokens() const { return tokens_; }
  std::span<const std::int32_t> targets() const { return targets_; }
  std::span<const std::int32_t> document_starts() const { return document_starts_; }
  // Of each row, a function of the seed and its sample number alone: what is drawn by it is the
  // same for any micro-batch and number of ranks.
  std::span<const std::uint64_t> row_keys() const { return row_keys_; }

 private:
  const TextDataset& data_;
  const std::uint64_t rows_, rank_, world_size_;
  const std::size_t columns_;
  const Random row_random_;
  const Masking* const masking_;
  std::vector<std::int32_t> tokens_, targets_;
  std::vector<std::int32_t> document_starts_;  // none where documents are joined
  std::vector<std::uint64_t> row_keys_;
};

}  // namespace isthmus::runtime

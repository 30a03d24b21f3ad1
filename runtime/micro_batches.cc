#include "runtime/micro_batches.h"

#include "base/assert.h"

namespace isthmus::runtime {

MicroBatches::MicroBatches(const TextDataset& data, const BatchShape& shape, int rank,
                           int world_size, std::uint64_t seed, const Masking* masking)
    : data_(data),
      rows_(static_cast<std::uint64_t>(shape.micro_batch)),
      rank_(static_cast<std::uint64_t>(rank)),
      world_size_(static_cast<std::uint64_t>(world_size)),
      columns_(static_cast<std::size_t>(shape.sequence)),
      row_random_(Random(seed).split("rows")),
      masking_(masking),
      tokens_(static_cast<std::size_t>(shape.tokens())),
      targets_(tokens_.size()),
      document_starts_(shape.documents == Documents::apart ? tokens_.size() : 0),
      row_keys_(rows_) {
  ISTHMUS_ASSERT(data.sequence() == shape.sequence && data.documents() == shape.documents);
}

Result<void> MicroBatches::read(std::uint64_t position, std::int64_t micro) {
  const auto first = position + (static_cast<std::uint64_t>(micro) * world_size_ + rank_) * rows_;
  for (std::uint64_t row = 0; row < rows_; ++row) {
    const auto of_row = [&](std::vector<std::int32_t>& all) {
      return all.empty() ? std::span<std::int32_t>()
                         : std::span(all).subspan(row * columns_, columns_);
    };
    ISTHMUS_CHECK(
        data_.read(first + row, of_row(tokens_), of_row(targets_), of_row(document_starts_)));
    row_keys_[row] = row_random_.at(first + row);
    if (masking_ != nullptr) masking_->hide(row_keys_[row], of_row(tokens_), of_row(targets_));
  }
  return {};
}

}  // namespace isthmus::runtime

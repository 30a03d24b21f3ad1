#include "runtime/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <numbers>
#include <vector>

#include "base/assert.h"
#include "base/counted.h"
#include "runtime/text_tokens.h"

namespace isthmus::runtime {

Result<HeldOutLoss> held_out_loss(Model& model, Disk& disk, const std::string& path,
                                  std::int64_t sequences_max) {
  ISTHMUS_ASSERT(sequences_max > 0);
  if (model.config().vocabulary < kByteTokens)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("the model has {} tokens: text of bytes needs at least {}",
                             model.config().vocabulary, kByteTokens)};
  const auto sequence = static_cast<std::uint64_t>(model.shape().sequence);
  const auto rows = static_cast<std::uint64_t>(model.shape().micro_batch);
  ISTHMUS_TRY(const auto file, disk.open(path, Disk::Open::read));
  ISTHMUS_TRY(const auto bytes, file->size());
  const std::uint64_t count =
      std::min(static_cast<std::uint64_t>(sequences_max), bytes == 0 ? 0 : (bytes - 1) / sequence);
  if (count == 0)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{} has {}: to judge by it, at least {} are needed", path,
                             counted(bytes, "byte"), sequence + 1)};
  std::vector<std::byte> text(sequence + 1);
  std::vector<std::int32_t> tokens(rows * sequence), targets(rows * sequence);
  BatchLoss loss;
  for (std::uint64_t first = 0; first < count; first += rows) {
    std::fill(tokens.begin(), tokens.end(), 0);
    std::fill(targets.begin(), targets.end(), kIgnoredTarget);  // rows past the last sequence
    for (std::uint64_t row = 0; row < std::min(rows, count - first); ++row) {
      ISTHMUS_CHECK(file->read_at((first + row) * sequence, text));
      for (std::uint64_t i = 0; i < sequence; ++i) {
        tokens[row * sequence + i] = std::to_integer<std::int32_t>(text[i]);
        targets[row * sequence + i] = std::to_integer<std::int32_t>(text[i + 1]);
      }
    }
    loss += model.forward_loss(tokens, targets);
  }
  ISTHMUS_ASSERT(loss.counted == static_cast<std::int64_t>(count * sequence));
  return HeldOutLoss{loss.sum / static_cast<double>(loss.counted) / std::numbers::ln2,
                     static_cast<std::int64_t>(count)};
}

}  // namespace isthmus::runtime

#include "runtime/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>
#include <vector>

#include "base/assert.h"
#include "base/counted.h"
#include "base/random.h"
#include "runtime/batch_loss.h"
#include "runtime/byte_tokenizer.h"

namespace isthmus::runtime {
namespace {

// Bytes of text that the targets stand for.
Result<std::uint64_t> text_bytes(std::span<const std::int32_t> targets, const Tokenizer& tokenizer,
                                 const std::string& path) {
  std::uint64_t bytes = 0;
  for (const auto target : targets) {
    if (target == kIgnoredTarget) continue;
    if (target >= tokenizer.vocabulary())
      return Error{
          ErrorCode::invalid_argument,
          fmt::format("{} has the token {}, which is none of the tokenizer's ({}): name the "
                      "one that it was made with in model.tokenizer",
                      path, target, tokenizer.description())};
    bytes += tokenizer.piece(target).size();
  }
  return bytes;
}

}  // namespace

Result<HeldOutLoss> held_out_loss(Model& model, const Tokenizer& tokenizer, Disk& disk,
                                  const std::string& path, const HeldOutOptions& options) {
  ISTHMUS_ASSERT(options.sequences_max > 0);
  if (model.config().vocabulary < options.format.vocabulary)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("the model has {} tokens: the text needs at least {}",
                             model.config().vocabulary, options.format.vocabulary)};
  const auto sequence = static_cast<std::uint64_t>(model.shape().sequence);
  const auto rows = static_cast<std::uint64_t>(model.shape().micro_batch);
  ISTHMUS_TRY(const auto file, TokenFile::open(disk, path, options.format));
  const auto length = file.tokens();
  const std::uint64_t count = std::min(static_cast<std::uint64_t>(options.sequences_max),
                                       length == 0 ? 0 : (length - 1) / sequence);
  if (count == 0)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{} has {}: to judge by it, at least {} are needed", path,
                             counted(length, file.width() == TokenWidth::byte ? "byte" : "token"),
                             sequence + 1)};
  // A site that names no tokenizer has bytes, or ids of one that it does not know.
  const bool knows_bytes =
      !is_byte_tokenizer(tokenizer) || file.width() == TokenWidth::byte || file.names_tokenizer();
  const bool apart = model.shape().documents == Documents::apart;
  std::vector<std::int32_t> tokens(rows * sequence), targets(rows * sequence);
  std::vector<std::int32_t> starts(apart ? tokens.size() : 0);
  const auto row_random = Random(0).split("held_out_rows");  // the same in each run
  BatchLoss loss;
  std::uint64_t bytes = 0;
  for (std::uint64_t first = 0; first < count; first += rows) {
    std::fill(tokens.begin(), tokens.end(), 0);
    std::fill(targets.begin(), targets.end(), kIgnoredTarget);  // rows past the last sequence
    const auto here = std::min(rows, count - first);
    const auto read = std::span(tokens).first(here * sequence);
    const auto next = std::span(targets).first(here * sequence);
    ISTHMUS_CHECK(file.read(first * sequence, read));
    ISTHMUS_CHECK(file.read(first * sequence + 1, next));
    ISTHMUS_CHECK(file.hide(first * sequence + 1, next));
    std::fill(starts.begin(), starts.end(), 0);
    for (std::uint64_t row = 0; row < here; ++row) {
      const auto of_row = [&](std::vector<std::int32_t>& all) {
        return std::span(all).subspan(row * sequence, sequence);
      };
      if (apart && file.knows_documents())
        ISTHMUS_CHECK(
            file.part((first + row) * sequence, of_row(tokens), of_row(starts), of_row(targets)));
      if (options.masking != nullptr)
        options.masking->hide(row_random.at(first + row), of_row(tokens), of_row(targets));
    }
    if (knows_bytes) {
      ISTHMUS_TRY(const auto more, text_bytes(next, tokenizer, path));
      bytes += more;
    }
    loss += model.forward_loss(tokens, targets, starts);
    if (options.progress)
      options.progress(static_cast<std::int64_t>(first + here), static_cast<std::int64_t>(count));
  }
  if (loss.counted == 0 || (knows_bytes && bytes == 0))
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("{} has nothing to predict in its first {}: {}", path,
                    counted(count, "sequence"),
                    options.masking == nullptr
                        ? "its mask hides all of it"
                        : "its mask file excludes all of it, or none of so few tokens was chosen")};
  HeldOutLoss result{
      .perplexity = std::exp(loss.sum / static_cast<double>(loss.counted)),
      .sequences = static_cast<std::int64_t>(count),
      .objective = options.masking == nullptr ? Objective::next_token : Objective::masked_tokens};
  if (knows_bytes) result.bits_per_byte = loss.sum / std::numbers::ln2 / static_cast<double>(bytes);
  return result;
}

}  // namespace isthmus::runtime

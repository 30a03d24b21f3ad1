#include "runtime/masking.h"

#include "base/assert.h"
#include "base/random.h"
#include "runtime/batch_loss.h"

namespace isthmus::runtime {
namespace {

constexpr double kMaskShare = 0.8;  // of those that are chosen
constexpr double kKeptShare = 0.1;

double fraction_of(std::uint32_t draw) { return static_cast<double>(draw) * 0x1p-32; }

}  // namespace

Masking::Masking(const MaskingOptions& options)
    : share_(options.share),
      token_(options.token),
      vocabulary_(static_cast<std::uint64_t>(options.vocabulary)) {
  ISTHMUS_ASSERT(options.share > 0 && options.share <= 1 && options.token >= 0 &&
                 options.vocabulary > 0);
  auto special = options.special;
  special.push_back(token_);
  for (const auto token : special) {
    ISTHMUS_ASSERT(token >= 0);
    const auto id = static_cast<std::size_t>(token);
    if (id >= special_.size()) special_.resize(id + 1);
    special_[id] = true;
  }
}

bool Masking::is_special(std::int32_t token) const {
  const auto id = static_cast<std::size_t>(token);
  return id < special_.size() && special_[id];
}

void Masking::hide(std::uint64_t row_key, std::span<std::int32_t> tokens,
                   std::span<std::int32_t> targets) const {
  ISTHMUS_ASSERT(tokens.size() == targets.size());
  const auto random = Random(row_key).split("masking");
  // From the back, as what comes in of a token is at the place before it.
  for (std::size_t i = tokens.size(); i-- > 0;) {
    const bool may_be_target = i > 0 && targets[i - 1] != kIgnoredTarget;
    targets[i] = kIgnoredTarget;
    if (!may_be_target || is_special(tokens[i])) continue;
    const auto draws = random.block(i);
    if (fraction_of(draws[0]) >= share_) continue;
    targets[i] = tokens[i];
    const double what = fraction_of(draws[1]);
    if (what < kMaskShare)
      tokens[i] = token_;
    else if (what < 1 - kKeptShare)  // unfair by less than vocabulary / 2^32
      tokens[i] = static_cast<std::int32_t>(draws[2] * vocabulary_ >> 32);
  }
}

std::vector<std::int32_t> special_tokens(const Tokenizer& tokenizer) {
  std::vector<std::int32_t> special;
  for (std::int32_t id = 0; id < tokenizer.vocabulary(); ++id)
    if (tokenizer.piece(id).empty()) special.push_back(id);
  return special;
}

std::optional<std::int32_t> mask_token(const Tokenizer& tokenizer) {
  for (const auto* name : {"[MASK]", "<mask>"})
    if (const auto token = tokenizer.special(name)) return token;
  return std::nullopt;
}

}  // namespace isthmus::runtime

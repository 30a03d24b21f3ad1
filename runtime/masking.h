// Masking: which tokens of a sequence are hidden from a model that predicts hidden ones, and what
// it sees in their place (masked-language modelling: Devlin et al. 2018, section 3.1). It reads no
// text (runtime/text_dataset.h), and knows no batch (runtime/micro_batches.h).
//
//   tokens in    the  strip  joins  two  lands        each is chosen with probability `share`, by
//   chosen              x             x               itself; a chosen one is the target, and
//   tokens out   the  [MASK] joins  two  lands        becomes the mask token (80 %), any token of
//   targets out   -   strip    -    two    -          the vocabulary (10 %), or stays (10 %)
//
// All of it is a function of the row's key and the position in the row alone: the same for any
// micro-batch, rank and number of threads.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/tokenizer.h"

namespace isthmus::runtime {

struct MaskingOptions {
  double share = 0.15;                     // of the tokens that may be chosen; above 0, up to 1
  std::int32_t token = 0;                  // the mask token
  std::int32_t vocabulary = 0;             // tokens that come in place of others are below
  std::vector<std::int32_t> special = {};  // never chosen: begin, end, padding, mask
};

class Masking {
 public:
  explicit Masking(const MaskingOptions& options);

  double share() const { return share_; }
  std::int32_t token() const { return token_; }

  // Of a row as TextDataset gives it: `targets` comes in as what follows each token, kIgnoredTarget
  // where that is no target, and goes out as the token that stood at its own place where it was
  // chosen, else kIgnoredTarget. A token that is special is never chosen, nor one that is no target
  // on the way in, which the place before it says: one that a mask file hides, and the first of a
  // document where they are apart. Of the row's first token nothing says whether it may be one, so
  // it is never chosen either. There may be no target left.
  void hide(std::uint64_t row_key, std::span<std::int32_t> tokens,
            std::span<std::int32_t> targets) const;

 private:
  bool is_special(std::int32_t token) const;

  double share_;
  std::int32_t token_;
  std::uint64_t vocabulary_;
  std::vector<bool> special_;  // by id
};

// The tokens that stand for no text.
std::vector<std::int32_t> special_tokens(const Tokenizer& tokenizer);

// What the tokenizer calls `[MASK]` or `<mask>`.
std::optional<std::int32_t> mask_token(const Tokenizer& tokenizer);

}  // namespace isthmus::runtime

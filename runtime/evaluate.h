// Held-out loss: how well a model predicts text it was not trained on. The first sequences of the
// text's tokens, one after the other without overlap, each from its own beginning, without a begin
// token. By a model that keeps documents apart each is judged by itself, and a text of which it is
// not known where they begin is one. Perplexity compares models with one tokenizer, bits per byte
// any; of tokens that were made elsewhere, where no tokenizer says what bytes they stand for, there
// is perplexity alone. Of a model that predicts hidden tokens both are of those, and compare such
// models alone, of one share; which ones are hidden is a function of the sequence's number, the
// same each time.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/disk.h"
#include "base/result.h"
#include "runtime/masking.h"
#include "runtime/model.h"
#include "runtime/token_file.h"
#include "runtime/tokenizer.h"

namespace isthmus::runtime {

struct HeldOutText {
  std::string name;  // in reports: "en"
  std::string path;
};

struct HeldOutLoss {
  // Per byte of the text that the tokens stand for; those of special tokens count, and stand for
  // none. Nothing: what they stand for is not known.
  std::optional<double> bits_per_byte = {};
  double perplexity = 0;                        // per token: e to the mean loss
  std::int64_t sequences = 0;                   // how many there were, at most as many as asked for
  Objective objective = Objective::next_token;  // what was predicted

  // Per byte, or per token where bytes are not known.
  double bits() const { return bits_per_byte.value_or(std::log2(perplexity)); }
};

struct HeldOutOptions {
  TokenFormat format = {};
  std::int64_t sequences_max = 24;
  const Masking* masking = nullptr;  // where the model predicts hidden tokens
  std::function<void(std::int64_t done, std::int64_t total)> progress = {};  // of sequences
};

// Sequences have the length of the model's shape. Errors: those of TokenFile; invalid_argument (the
// text is shorter than one sequence and a token, has no target, has tokens that are none of the
// tokenizer's; the model's vocabulary is smaller than the text's).
Result<HeldOutLoss> held_out_loss(Model& model, const Tokenizer& tokenizer, Disk& disk,
                                  const std::string& path, const HeldOutOptions& options = {});

}  // namespace isthmus::runtime

// Generation: a model continues texts. Only tokens that keep a text valid UTF-8 are drawn (a
// character may span tokens), so whatever the model knows, what comes out can be printed as text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "runtime/model.h"
#include "runtime/tokenizer.h"

namespace isthmus::runtime {

struct GenerateOptions {
  std::int64_t bytes_max =
      200;                   // of each, without its prompt; a token or character begun is finished
  double temperature = 0.8;  // 0: always the likeliest token
  std::int64_t top_k = 0;    // draw among this many likeliest only; 0: among all
  // Draw among the fewest likeliest that have this much of the probability together (nucleus
  // sampling: Holtzman et al. 2020), after temperature and top_k; 1: among all.
  double top_p = 1;
  std::uint64_t seed = 1;
  bool stop_at_newline = false;  // the newline is not part of the result
  // Each prompt is what a user says, laid out as fine-tuning does it (document_layout.h), and the
  // model answers; else a text to go on with.
  bool answers = false;
};

// What follows each of the prompts, without it; shorter when the model ends the text. The texts are
// continued side by side, and each is what it would be alone, at the same place in the list. The
// model sees the last tokens that fit its sequence, or at least half as many once a text has
// outgrown it. A text's prompt follows what begins a text, where the tokenizer has that; else an
// empty one is a new line. Errors: invalid_argument (no prompt, or one that is not UTF-8, an option
// out of range, the vocabulary is not the tokenizer's), unsupported (the model predicts hidden
// tokens), too_large, non_finite.
Result<std::vector<std::string>> generate(Model& model, const Tokenizer& tokenizer,
                                          std::span<const std::string> prompts,
                                          const GenerateOptions& options);

}  // namespace isthmus::runtime

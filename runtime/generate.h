// Generation: a byte-level model continues a text. Only bytes that keep the text valid UTF-8 are
// drawn, so whatever the model knows, what comes out can be printed as text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "runtime/model.h"

namespace isthmus::runtime {

struct GenerateOptions {
  std::int64_t bytes_max = 200;  // without the prompt; a character begun is finished
  double temperature = 0.8;      // 0: always the likeliest byte
  std::int64_t top_k = 0;        // draw among this many likeliest only; 0: among all
  std::uint64_t seed = 1;
  bool stop_at_newline = false;  // the newline is not part of the result
};

// What follows `prompt`, without it; shorter when the model ends the text. The model sees the last
// bytes that fit its sequence. An empty prompt is a new line. Errors: invalid_argument (the prompt
// is not UTF-8, a temperature is negative, the vocabulary is not of bytes), non_finite.
Result<std::string> generate(Model& model, std::string_view prompt, const GenerateOptions& options);

}  // namespace isthmus::runtime

// How a site's tokens are hidden, where its model predicts hidden tokens: [masking] together with
// the model and its tokenizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "launcher/site_file.h"
#include "runtime/masking.h"
#include "runtime/model_config.h"
#include "runtime/tokenizer.h"

namespace isthmus::launcher {

// Of a model with so many tokens. Errors: invalid_argument (no mask token, or one that the model
// does not know).
Result<runtime::Masking> masking_of(const MaskingOptions& options,
                                    const runtime::Tokenizer& tokenizer, std::int64_t vocabulary);

// None for a model that predicts the next token.
Result<std::optional<runtime::Masking>> site_masking(const SiteFile& file,
                                                     const runtime::Tokenizer& tokenizer,
                                                     const runtime::ModelConfig& config);

// For HeldOutOptions and TrainParts.
inline const runtime::Masking* pointer_to(const std::optional<runtime::Masking>& masking) {
  return masking ? &*masking : nullptr;
}

// What sites must agree on of it: "" where nothing is hidden, else ", hides 0.15 as 259".
std::string masking_settings(const std::optional<runtime::Masking>& masking);

}  // namespace isthmus::launcher

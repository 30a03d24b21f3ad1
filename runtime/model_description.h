// A model's description as Hugging Face writes it: config.json of a LlamaForCausalLM, which
// `transformers` loads as it is.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "runtime/model_config.h"

namespace isthmus::runtime {

std::string to_config_json(const ModelConfig& config);

// Somebody's config.json: checked, and refused when it asks for what we would compute differently
// (another architecture, activation, rotary scaling, biases). Errors: corrupt (no JSON, a field
// missing or of the wrong kind), unsupported, invalid_argument (sizes that do not fit each other).
Result<ModelConfig> from_config_json(std::string_view text);

}  // namespace isthmus::runtime

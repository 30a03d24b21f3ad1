// A model's description as Hugging Face writes it: a config.json, which `transformers` loads as it
// is.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "runtime/fine_tuning.h"
#include "runtime/model_config.h"
#include "runtime/safetensors.h"

namespace isthmus::runtime {

// With parameters of this dtype beside it.
std::string to_config_json(const ModelConfig& config, StoredDType dtype = StoredDType::f32);

// Somebody's config.json: checked, and refused when it asks for what we would compute differently
// (another architecture or activation, biases, dropout, a sliding window, a rotary scaling that we
// do not know). Errors: corrupt (no JSON, a field
// missing or of the wrong kind), unsupported, invalid_argument (sizes that do not fit each other).
Result<ModelConfig> from_config_json(std::string_view text);

// What sites must agree on and the shapes of the tensors do not say, in one line: "llama, heads
// 8/4, rope_theta 10000, norm_eps 1e-05" (query heads, key and value heads).
// Where not all of it trains, also the adapters and what the frozen rest is (its digest).
std::string settings_text(const ModelConfig& config, const FineTuning& tuning = {},
                          std::string_view frozen_digest = {});

}  // namespace isthmus::runtime

#include "runtime/model_description.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "runtime/shallow_json.h"
#include "runtime/text_tokens.h"

namespace isthmus::runtime {
namespace {

using Json = nlohmann::ordered_json;

Error fault(std::string_view key, std::string_view what) {
  return {ErrorCode::corrupt, fmt::format("config.json: {} {}", key, what)};
}

Error not_ours(std::string_view key, const Json& value, std::string_view ours) {
  return {ErrorCode::unsupported,
          fmt::format("config.json: {} is {}; this version knows {}", key,
                      value.dump(-1, ' ', false, Json::error_handler_t::replace), ours)};
}

// null counts as absent, as in transformers.
bool has(const Json& json, const char* key) { return json.contains(key) && !json[key].is_null(); }

Result<std::int64_t> whole_number(const Json& json, const char* key) {
  if (!has(json, key)) return fault(key, "is missing");
  if (!json[key].is_number_unsigned() || json[key].get<std::uint64_t>() > std::uint64_t{1} << 40)
    return fault(key, "is no positive whole number");
  return json[key].get<std::int64_t>();
}

Result<std::int64_t> whole_number(const Json& json, const char* key, std::int64_t otherwise) {
  if (!has(json, key)) return otherwise;
  return whole_number(json, key);
}

Result<double> number(const Json& json, const char* key, double otherwise) {
  if (!has(json, key)) return otherwise;
  if (!json[key].is_number()) return fault(key, "is no number");
  return json[key].get<double>();
}

Result<bool> flag(const Json& json, const char* key, bool otherwise) {
  if (!has(json, key)) return otherwise;
  if (!json[key].is_boolean()) return fault(key, "is neither true nor false");
  return json[key].get<bool>();
}

// The base of the rotary frequencies: a field of its own, or (transformers 5) of rope_parameters.
Result<double> rope_theta(const Json& json) {
  if (has(json, "rope_scaling"))
    return not_ours("rope_scaling", json["rope_scaling"], "unscaled rotary embeddings");
  if (!has(json, "rope_parameters")) return number(json, "rope_theta", 10000.0);
  const auto& rope = json["rope_parameters"];
  if (!rope.is_object()) return fault("rope_parameters", "is no object");
  if (has(rope, "rope_type") && rope["rope_type"] != "default")
    return not_ours("rope_type", rope["rope_type"], "\"default\"");
  return number(rope, "rope_theta", 10000.0);
}

Result<void> check_architecture(const Json& json) {
  if (!has(json, "model_type")) return fault("model_type", "is missing");
  if (json["model_type"] != "llama") return not_ours("model_type", json["model_type"], "\"llama\"");
  if (has(json, "architectures") && json["architectures"] != Json::array({"LlamaForCausalLM"}))
    return not_ours("architectures", json["architectures"], "[\"LlamaForCausalLM\"]");
  if (has(json, "hidden_act") && json["hidden_act"] != "silu")
    return not_ours("hidden_act", json["hidden_act"], "\"silu\"");
  for (const char* bias : {"attention_bias", "mlp_bias"}) {
    ISTHMUS_TRY(const bool on, flag(json, bias, false));
    if (on) return not_ours(bias, json[bias], "models without biases");
  }
  return {};
}

}  // namespace

std::string to_config_json(const ModelConfig& config) {
  // Special tokens only where the vocabulary has them: transformers refuses ids outside of it.
  const bool has_special_tokens = config.vocabulary >= kTextVocabulary;
  const auto token = [&](std::int32_t id) { return has_special_tokens ? Json(id) : Json(nullptr); };
  const Json json = {{"architectures", {"LlamaForCausalLM"}},
                     {"model_type", "llama"},
                     {"vocab_size", config.vocabulary},
                     {"hidden_size", config.hidden},
                     {"intermediate_size", config.ffn_width},
                     {"num_hidden_layers", config.layers},
                     {"num_attention_heads", config.heads},
                     {"num_key_value_heads", config.kv_heads},
                     {"head_dim", config.head_elements()},
                     {"max_position_embeddings", config.sequence_max},
                     {"rms_norm_eps", config.norm_eps},
                     {"rope_theta", config.rope_theta},
                     {"rope_scaling", nullptr},
                     {"tie_word_embeddings", config.tied},
                     {"hidden_act", "silu"},
                     {"attention_bias", false},
                     {"mlp_bias", false},
                     {"attention_dropout", 0.0},
                     {"initializer_range", 0.02},
                     {"bos_token_id", token(kBeginToken)},
                     {"eos_token_id", token(kEndToken)},
                     {"pad_token_id", token(kPadToken)},
                     {"use_cache", true},
                     {"torch_dtype", "float32"}};
  return json.dump(2) + "\n";
}

std::string settings_text(const ModelConfig& config) {
  return fmt::format("{}, heads {}/{}, rope_theta {}, norm_eps {}", config.family, config.heads,
                     config.kv_heads, config.rope_theta, config.norm_eps);
}

Result<ModelConfig> from_config_json(std::string_view text) {
  const auto json = parse_shallow_json<Json>(text);
  if (json.is_discarded() || !json.is_object())
    return Error{
        ErrorCode::corrupt,
        "config.json is cut short, no JSON object, nested too deep, or has a number out of range"};
  ISTHMUS_CHECK(check_architecture(json));
  ModelConfig config;
  ISTHMUS_TRY(config.vocabulary, whole_number(json, "vocab_size"));
  ISTHMUS_TRY(config.hidden, whole_number(json, "hidden_size"));
  ISTHMUS_TRY(config.ffn_width, whole_number(json, "intermediate_size"));
  ISTHMUS_TRY(config.layers, whole_number(json, "num_hidden_layers"));
  ISTHMUS_TRY(config.heads, whole_number(json, "num_attention_heads"));
  ISTHMUS_TRY(config.kv_heads, whole_number(json, "num_key_value_heads", config.heads));
  ISTHMUS_TRY(config.head_dim, whole_number(json, "head_dim", 0));
  // One way to say the usual size, so that equal models compare equal.
  if (config.heads > 0 && config.head_dim == config.hidden / config.heads) config.head_dim = 0;
  ISTHMUS_TRY(config.sequence_max, whole_number(json, "max_position_embeddings", 2048));
  ISTHMUS_TRY(config.norm_eps, number(json, "rms_norm_eps", 1e-6));
  ISTHMUS_TRY(config.rope_theta, rope_theta(json));
  ISTHMUS_TRY(config.tied, flag(json, "tie_word_embeddings", false));
  ISTHMUS_CHECK(check(config));
  return config;
}

}  // namespace isthmus::runtime

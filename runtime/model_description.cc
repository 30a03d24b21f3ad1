#include "runtime/model_description.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/assert.h"
#include "runtime/family.h"
#include "runtime/shallow_json.h"
#include "runtime/text_tokens.h"

namespace isthmus::runtime {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::int64_t kLayersMax = 1024;  // that any configuration may have

Error config_fault(std::string_view key, std::string_view what) {
  return {ErrorCode::corrupt, fmt::format("config.json: {} {}", key, what)};
}

Error not_ours(std::string_view key, const OrderedJson& value, std::string_view ours) {
  return {ErrorCode::unsupported,
          fmt::format("config.json: {} is {}; this version knows {}", key,
                      value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace), ours)};
}

// null counts as absent, as in transformers.
bool has(const OrderedJson& json, const char* key) {
  return json.contains(key) && !json[key].is_null();
}

Result<std::int64_t> whole_number(const OrderedJson& json, const char* key) {
  if (!has(json, key)) return config_fault(key, "is missing");
  if (!json[key].is_number_unsigned() || json[key].get<std::uint64_t>() > std::uint64_t{1} << 40)
    return config_fault(key, "is no positive whole number");
  return json[key].get<std::int64_t>();
}

Result<std::int64_t> whole_number(const OrderedJson& json, const char* key,
                                  std::int64_t otherwise) {
  if (!has(json, key)) return otherwise;
  return whole_number(json, key);
}

Result<double> number(const OrderedJson& json, const char* key, double otherwise) {
  if (!has(json, key)) return otherwise;
  if (!json[key].is_number()) return config_fault(key, "is no number");
  return json[key].get<double>();
}

Result<bool> flag_or(const OrderedJson& json, const char* key, bool otherwise) {
  if (!has(json, key)) return otherwise;
  if (!json[key].is_boolean()) return config_fault(key, "is neither true nor false");
  return json[key].get<bool>();
}

// A field that computes nothing we do unless it has this value (or is not there).
Result<void> must_be(const OrderedJson& json, const char* key, const OrderedJson& value) {
  if (!has(json, key) || json[key] == value) return {};
  return not_ours(key, json[key], value.dump());
}

// ---- rotary positions

// Nobody knows a key that is not here: it may change what is computed.
Result<void> check_rope_keys(const OrderedJson& rope, const char* where) {
  static constexpr std::array kKeys{"rope_type",
                                    "type",
                                    "rope_theta",
                                    "factor",
                                    "low_freq_factor",
                                    "high_freq_factor",
                                    "beta_fast",
                                    "beta_slow",
                                    "truncate",
                                    "attention_factor",
                                    "original_max_position_embeddings"};
  for (const auto& [key, value] : rope.items())
    if (!value.is_null() && std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end())
      return not_ours(fmt::format("{}.{}", where, key), value, "no such field");
  return {};
}

// The object `rope_scaling` or `rope_parameters`.
Result<RopeScaling> rope_scaling(const OrderedJson& rope, std::int64_t sequence_max) {
  using Kind = RopeScaling::Kind;
  RopeScaling scaling;
  const char* type = has(rope, "rope_type") ? "rope_type" : "type";
  if (!has(rope, type) || rope[type] == "default") return scaling;
  for (const auto kind : {Kind::linear, Kind::llama3, Kind::yarn})
    if (rope[type] == std::string(to_string(kind))) scaling.kind = kind;
  if (scaling.kind == Kind::none)
    return not_ours(type, rope[type], "\"default\", \"linear\", \"llama3\" and \"yarn\"");
  ISTHMUS_TRY(scaling.original_positions,
              whole_number(rope, "original_max_position_embeddings", sequence_max));
  const bool may_follow = scaling.kind == Kind::yarn && scaling.original_positions > 0;
  ISTHMUS_TRY(scaling.factor,
              number(rope, "factor",
                     may_follow ? static_cast<double>(sequence_max) /
                                      static_cast<double>(scaling.original_positions)
                                : 0));
  if (scaling.kind == Kind::linear) {
    scaling.original_positions = 0;
    return scaling;
  }
  if (scaling.kind == Kind::llama3) {
    ISTHMUS_TRY(scaling.low_frequency_factor, number(rope, "low_freq_factor", 0));
    ISTHMUS_TRY(scaling.high_frequency_factor, number(rope, "high_freq_factor", 0));
    return scaling;
  }
  ISTHMUS_TRY(scaling.beta_fast, number(rope, "beta_fast", 32));
  ISTHMUS_TRY(scaling.beta_slow, number(rope, "beta_slow", 1));
  ISTHMUS_TRY(scaling.truncate, flag_or(rope, "truncate", true));
  ISTHMUS_TRY(scaling.attention_factor, number(rope, "attention_factor", 0));
  return scaling;
}

// transformers 4 writes `rope_theta` and `rope_scaling`, transformers 5 `rope_parameters`, which
// has both.
Result<void> read_rope(const OrderedJson& json, const Family& family, ModelConfig& config) {
  const char* key = has(json, "rope_parameters") ? "rope_parameters" : "rope_scaling";
  ISTHMUS_TRY(config.rope_theta, number(json, "rope_theta", family.rope_theta));
  if (!has(json, key)) return {};
  const auto& rope = json[key];
  if (!rope.is_object()) return config_fault(key, "is no object");
  ISTHMUS_CHECK(check_rope_keys(rope, key));
  ISTHMUS_TRY(config.rope_theta, number(rope, "rope_theta", config.rope_theta));
  ISTHMUS_TRY(config.rope_scaling, rope_scaling(rope, config.sequence_max));
  return {};
}

// In the older spelling, which both versions read. null: unscaled.
OrderedJson to_json(const RopeScaling& scaling) {
  using Kind = RopeScaling::Kind;
  if (scaling.kind == Kind::none) return nullptr;
  OrderedJson json = {{"rope_type", to_string(scaling.kind)}, {"factor", scaling.factor}};
  if (scaling.kind == Kind::linear) return json;
  json["original_max_position_embeddings"] = scaling.original_positions;
  if (scaling.kind == Kind::llama3) {
    json["low_freq_factor"] = scaling.low_frequency_factor;
    json["high_freq_factor"] = scaling.high_frequency_factor;
    return json;
  }
  json["beta_fast"] = scaling.beta_fast;
  json["beta_slow"] = scaling.beta_slow;
  json["truncate"] = scaling.truncate;
  if (scaling.attention_factor > 0) json["attention_factor"] = scaling.attention_factor;
  return json;
}

// ---- families

Result<const Family*> family_of(const OrderedJson& json) {
  if (!has(json, "model_type")) return config_fault("model_type", "is missing");
  const auto* family =
      json["model_type"].is_string() ? find_family(json["model_type"].get<std::string>()) : nullptr;
  if (family == nullptr)
    return not_ours("model_type", json["model_type"],
                    fmt::format("\"{}\"", fmt::join(family_names(), "\", \"")));
  ISTHMUS_CHECK(
      must_be(json, "architectures", OrderedJson::array({std::string(family->architecture)})));
  return family;
}

// What a decoder of ours has one way only. Dropout leaves scores alone, but not training.
Result<void> check_decoder(const OrderedJson& json, const Family& family) {
  ISTHMUS_CHECK(must_be(json, "hidden_act", "silu"));
  ISTHMUS_CHECK(must_be(json, "attention_bias", false));
  ISTHMUS_CHECK(must_be(json, "mlp_bias", false));
  ISTHMUS_CHECK(must_be(json, "use_sliding_window", false));
  // A Mixtral has no flag beside it.
  if (family.has_experts && !json.contains("use_sliding_window"))
    ISTHMUS_CHECK(must_be(json, "sliding_window", nullptr));
  ISTHMUS_CHECK(must_be(json, "router_jitter_noise", 0.0));
  ISTHMUS_CHECK(must_be(json, "partial_rotary_factor", 1.0));
  if (has(json, "attention_dropout") && json["attention_dropout"] != 0)
    return not_ours("attention_dropout", json["attention_dropout"], "0");
  if (has(json, "layer_types") && json["layer_types"].is_array())
    for (const auto& type : json["layer_types"])
      if (type != "full_attention")
        return not_ours("layer_types", type, "\"full_attention\" in each layer");
  return {};
}

Result<void> must_be_plain(const OrderedJson& json) {
  if (!has(json, "quantization_config")) return {};
  return not_ours("quantization_config", json["quantization_config"],
                  "parameters that are not quantised");
}

// ---- mixtures of experts

// transformers knows both names of the number of experts.
const char* experts_key(const Family& family) {
  return family.experts_have_width ? "num_experts" : "num_local_experts";
}

// Layers without experts: those that are named, and all but each `step`-th.
Result<std::vector<int>> dense_layers(const OrderedJson& json, std::int64_t layers) {
  ISTHMUS_TRY(const auto step, whole_number(json, "decoder_sparse_step", 1));
  if (step < 1) return config_fault("decoder_sparse_step", "is 0");
  std::vector<int> dense;
  for (int layer = 0; layer < std::min<std::int64_t>(layers, kLayersMax); ++layer)
    if ((layer + 1) % step != 0) dense.push_back(layer);
  if (!has(json, "mlp_only_layers")) return dense;
  const auto& named = json["mlp_only_layers"];
  if (!named.is_array()) return config_fault("mlp_only_layers", "is no list");
  for (const auto& layer : named) {
    if (!layer.is_number_unsigned() || layer.get<std::uint64_t>() > std::uint64_t{1} << 20)
      return config_fault("mlp_only_layers", "has an entry that is no layer");
    if (layer.get<std::int64_t>() < layers) dense.push_back(layer.get<int>());
  }
  std::ranges::sort(dense);
  dense.erase(std::unique(dense.begin(), dense.end()), dense.end());
  return dense;
}

Result<void> read_experts(const OrderedJson& json, const Family& family, ModelConfig& config) {
  if (!family.has_experts) return {};
  const char* key = has(json, "num_experts") ? "num_experts" : "num_local_experts";
  ISTHMUS_TRY(config.experts, whole_number(json, key, family.experts));
  ISTHMUS_TRY(config.experts_per_token,
              whole_number(json, "num_experts_per_tok", family.experts_per_token));
  if (!family.experts_have_width) return {};
  ISTHMUS_TRY(config.expert_width,
              whole_number(json, "moe_intermediate_size", family.expert_width));
  if (family.has_shared_expert) {
    ISTHMUS_CHECK(must_be(json, "qkv_bias", true));
    ISTHMUS_TRY(config.shared_expert_width,
                whole_number(json, "shared_expert_intermediate_size", family.shared_expert_width));
  }
  ISTHMUS_TRY(config.normalise_top_k, flag_or(json, "norm_topk_prob", false));
  ISTHMUS_TRY(config.dense_layers, dense_layers(json, config.layers));
  return {};
}

void write_experts(const ModelConfig& config, const Family& family, OrderedJson& json) {
  if (!family.has_experts) return;
  json[experts_key(family)] = config.experts;
  json["num_experts_per_tok"] = config.experts_per_token;
  json["router_aux_loss_coef"] = 0.001;
  json["output_router_logits"] = false;
  if (!family.experts_have_width) return;
  json["moe_intermediate_size"] = config.expert_elements();
  if (family.has_shared_expert) {
    json["shared_expert_intermediate_size"] = config.shared_expert_width;
    json["qkv_bias"] = true;
  }
  json["norm_topk_prob"] = config.normalise_top_k;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = config.dense_layers;
}

// ---- decoders and encoders

void write_decoder(const ModelConfig& config, const Family& family, OrderedJson& json) {
  json["num_key_value_heads"] = config.kv_heads;
  json["head_dim"] = config.head_elements();
  json["rms_norm_eps"] = config.norm_eps;
  json["rope_theta"] = config.rope_theta;
  json["rope_scaling"] = to_json(config.rope_scaling);
  json["hidden_act"] = "silu";
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  write_experts(config, family, json);
}

void write_encoder(const ModelConfig& config, OrderedJson& json) {
  json["type_vocab_size"] = config.token_types;
  json["layer_norm_eps"] = config.norm_eps;
  json["hidden_act"] = "gelu";
  json["hidden_dropout_prob"] = config.dropout;
  json["attention_probs_dropout_prob"] = config.attention_dropout;
}

Result<void> read_decoder(const OrderedJson& json, const Family& family, ModelConfig& config) {
  ISTHMUS_CHECK(check_decoder(json, family));
  const bool says_kv_heads = json.contains("num_key_value_heads") || family.kv_heads == 0;
  ISTHMUS_TRY(config.kv_heads, whole_number(json, "num_key_value_heads",
                                            says_kv_heads ? config.heads : family.kv_heads));
  ISTHMUS_TRY(config.head_dim, whole_number(json, "head_dim", family.head_dim));
  // One way to say the usual size, so that equal models compare equal.
  if (config.heads > 0 && config.hidden % config.heads == 0 &&
      config.head_dim == config.hidden / config.heads)
    config.head_dim = 0;
  ISTHMUS_TRY(config.norm_eps, number(json, "rms_norm_eps", 1e-6));
  ISTHMUS_CHECK(read_rope(json, family, config));
  ISTHMUS_TRY(config.tied, flag_or(json, "tie_word_embeddings", false));
  ISTHMUS_CHECK(read_experts(json, family, config));
  if (config.expert_width == config.ffn_width) config.expert_width = 0;  // as above
  return {};
}

Result<double> dropout(const OrderedJson& json, const char* key) {
  ISTHMUS_TRY(const auto share, number(json, key, 0.1));
  if (share >= 0 && static_cast<float>(share) < 1) return share;
  return config_fault(key, fmt::format("is {}, but must be from 0 to below 1", share));
}

Result<void> read_encoder(const OrderedJson& json, const Family& family, ModelConfig& config) {
  ISTHMUS_CHECK(must_be(json, "hidden_act", "gelu"));
  ISTHMUS_CHECK(must_be(json, "position_embedding_type", "absolute"));
  ISTHMUS_CHECK(must_be(json, "add_cross_attention", false));
  ISTHMUS_CHECK(must_be(json, "is_decoder", false));
  ISTHMUS_CHECK(must_be(json, "tie_word_embeddings", true));
  config.kv_heads = config.heads;
  ISTHMUS_TRY(config.norm_eps, number(json, "layer_norm_eps", 1e-12));
  ISTHMUS_TRY(config.token_types, whole_number(json, "type_vocab_size", family.token_types));
  if (config.token_types < 1) return config_fault("type_vocab_size", "is 0");
  ISTHMUS_TRY(config.dropout, dropout(json, "hidden_dropout_prob"));
  ISTHMUS_TRY(config.attention_dropout, dropout(json, "attention_probs_dropout_prob"));
  return {};
}

}  // namespace

std::string to_config_json(const ModelConfig& config, StoredDType dtype) {
  // Special tokens only where the vocabulary has them: transformers refuses ids outside of it.
  const bool has_special_tokens = config.vocabulary >= kTextVocabulary;
  const auto token = [&](std::int32_t id) {
    return has_special_tokens ? OrderedJson(id) : OrderedJson(nullptr);
  };
  const auto* family = find_family(config.family);
  ISTHMUS_ASSERT(family != nullptr);
  OrderedJson json = {
      {"architectures", {family->architecture}}, {"model_type", family->name},
      {"vocab_size", config.vocabulary},         {"hidden_size", config.hidden},
      {"intermediate_size", config.ffn_width},   {"num_hidden_layers", config.layers},
      {"num_attention_heads", config.heads},     {"max_position_embeddings", config.sequence_max},
      {"tie_word_embeddings", config.tied},      {"initializer_range", 0.02},
      {"bos_token_id", token(kBeginToken)},      {"eos_token_id", token(kEndToken)},
      {"pad_token_id", token(kPadToken)},        {"use_cache", true},
      {"torch_dtype", name_of(dtype).torch_name}};
  if (family->objective == Objective::next_token)
    write_decoder(config, *family, json);
  else
    write_encoder(config, json);
  return json.dump(2) + "\n";
}

std::string settings_text(const ModelConfig& config, const FineTuning& tuning,
                          std::string_view frozen_digest) {
  auto text = fmt::format("{}, heads {}/{}, ", config.family, config.heads, config.kv_heads);
  if (const auto* family = find_family(config.family);
      family == nullptr || family->objective == Objective::next_token)
    text += fmt::format("rope_theta {}, ", config.rope_theta);
  text += fmt::format("norm_eps {}", config.norm_eps);
  if (config.rope_scaling.kind != RopeScaling::Kind::none)
    text += ", rope_scaling " + describe(config.rope_scaling);
  if (config.experts > 0)
    text += fmt::format(", {} experts per token{}", config.experts_per_token,
                        config.normalise_top_k ? ", normalised" : "");
  if (tuning.lora.rank > 0) text += fmt::format(", lora alpha {}", tuning.lora.alpha);
  if (!frozen_digest.empty()) text += fmt::format(", frozen {}", frozen_digest.substr(0, 32));
  return text;
}

Result<ModelConfig> from_config_json(std::string_view text) {
  const auto json = parse_shallow_json<OrderedJson>(text);
  if (json.is_discarded() || !json.is_object())
    return Error{
        ErrorCode::corrupt,
        "config.json is cut short, no JSON object, nested too deep, or has a number out of range"};
  ISTHMUS_TRY(const auto* family, family_of(json));
  ISTHMUS_CHECK(must_be_plain(json));
  ModelConfig config;
  config.family = family->name;
  ISTHMUS_TRY(config.vocabulary, whole_number(json, "vocab_size"));
  ISTHMUS_TRY(config.hidden, whole_number(json, "hidden_size"));
  ISTHMUS_TRY(config.ffn_width, whole_number(json, "intermediate_size"));
  ISTHMUS_TRY(config.layers, whole_number(json, "num_hidden_layers"));
  ISTHMUS_TRY(config.heads, whole_number(json, "num_attention_heads"));
  ISTHMUS_TRY(config.sequence_max,
              whole_number(json, "max_position_embeddings", family->sequence_max));
  if (family->objective == Objective::next_token)
    ISTHMUS_CHECK(read_decoder(json, *family, config));
  else
    ISTHMUS_CHECK(read_encoder(json, *family, config));
  ISTHMUS_CHECK(check(config));
  return config;
}

}  // namespace isthmus::runtime

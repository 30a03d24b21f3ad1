#include "runtime/model_description.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/runtime/small_model.h"

namespace isthmus::runtime {
namespace {

using testing::HasSubstr;

// The description of the small model with one field replaced, added or (with "") taken out.
std::string with(std::string_view key, std::string_view value) {
  std::string text = to_config_json(small_config());
  const std::string quoted = "\"" + std::string(key) + "\":";
  if (const auto at = text.find(quoted); at != std::string::npos) {
    const auto end = text.find('\n', at);
    text.erase(at, end - at);
    if (text.find_last_of(',') > text.find_last_of(':'))  // the last field had no comma
      text.erase(text.find_last_of(','), 1);
  }
  if (!value.empty()) text.insert(1, quoted + std::string(value) + ",");
  return text;
}

void expect_refused(std::string_view key, std::string_view value, ErrorCode code,
                    std::string_view named = {}) {
  const auto config = from_config_json(with(key, value));
  ASSERT_FALSE(config) << key << " " << value;
  EXPECT_EQ(config.error().code, code) << config.error().text();
  EXPECT_THAT(config.error().text(), HasSubstr(std::string(named.empty() ? key : named)));
}

TEST(ModelDescription, ComesBackAsItWas) {
  auto config = small_config();
  for (const bool tied : {true, false})
    for (const std::int64_t head_dim : {0, 16})
      for (const std::int64_t vocabulary : {256, 260, 8192}) {
        config.tied = tied;
        config.head_dim = head_dim;
        config.vocabulary = vocabulary;
        config.rope_theta = 500000.0;
        config.norm_eps = 1e-6;
        config.family = tied ? "llama" : "qwen3";
        config.rope_scaling = head_dim == 0 ? RopeScaling()
                                            : RopeScaling{.kind = RopeScaling::Kind::llama3,
                                                          .factor = 8,
                                                          .original_positions = 16};
        const auto again = from_config_json(to_config_json(config));
        ASSERT_TRUE(again) << again.error().text();
        EXPECT_EQ(*again, config);
      }
}

TEST(ModelDescription, OfExpertsComesBackAsItWas) {
  for (const auto& family : family_names_with_experts()) {
    const auto config = small_config(std::string(family));
    const auto again = from_config_json(to_config_json(config));
    ASSERT_TRUE(again) << again.error().text();
    EXPECT_EQ(*again, config);
  }
}

TEST(ModelDescription, OfAnEncoderComesBackAsItWas) {
  const auto config = small_config("bert");
  const auto text = to_config_json(config);
  const auto again = from_config_json(text);
  ASSERT_TRUE(again) << again.error().text();
  EXPECT_EQ(*again, config);
  EXPECT_THAT(text, testing::Not(HasSubstr("rope")));
  EXPECT_THAT(settings_text(config), testing::Not(HasSubstr("rope")));
}

TEST(ModelDescription, OfAnEncoderRefusesWhatWouldBeComputedDifferently) {
  for (const std::string field :
       {R"("hidden_act": "relu")", R"("position_embedding_type": "relative_key")",
        R"("is_decoder": true)", R"("add_cross_attention": true)",
        R"("tie_word_embeddings": false)", R"("quantization_config": {"bits": 4})"}) {
    auto text = to_config_json(small_config("bert"));
    const auto name = field.substr(0, field.find(':'));
    const auto there = text.find(name);
    if (there != std::string::npos) text.replace(there, text.find(',', there) - there, field);
    if (there == std::string::npos) text.insert(1, field + ",");
    const auto config = from_config_json(text);
    ASSERT_FALSE(config) << field;
    EXPECT_EQ(config.error().code, ErrorCode::unsupported) << field;
    EXPECT_THAT(config.error().text(), HasSubstr(name.substr(1, name.size() - 2)));
  }
}

// transformers counts layers from 1 in one field and from 0 in the other.
TEST(ModelDescription, DenseLayersAreThoseOfBothFields) {
  const auto dense = [](std::string_view step, std::string_view named) {
    auto config = small_config("qwen3_moe");
    config.layers = 6;
    auto text = to_config_json(config);
    const auto put = [&](std::string_view key, std::string_view value) {
      const auto at = text.find(key);
      const auto colon = text.find(':', at);
      auto end = text.find_first_of(",[", colon);
      if (text[end] == '[') end = text.find(']', end) + 1;
      text.replace(colon + 1, end - colon - 1, value);
    };
    put("decoder_sparse_step", step);
    put("mlp_only_layers", named);
    return from_config_json(text);
  };
  EXPECT_EQ(dense("1", "null")->dense_layers, std::vector<int>());
  EXPECT_EQ(dense("2", "null")->dense_layers, (std::vector<int>{0, 2, 4}));
  EXPECT_EQ(dense("3", "[5, 0, 99]")->dense_layers, (std::vector<int>{0, 1, 3, 4, 5}));
  for (const auto& [step, named, word] :
       {std::tuple{"0", "null", "decoder_sparse_step"},
        std::tuple{"-1", "[]", "decoder_sparse_step"}, std::tuple{"1", "3", "mlp_only_layers"},
        std::tuple{"1", "[-1]", "mlp_only_layers"},
        std::tuple{"1", "[0, 1, 2, 3, 4, 5]", "dense_layers"}}) {
    const auto refused = dense(step, named);
    ASSERT_FALSE(refused) << step << named;
    EXPECT_THAT(refused.error().text(), HasSubstr(word));
  }
}

TEST(ModelDescription, UnderstandsOlderAndNewerTransformers) {
  auto newer = from_config_json(
      with("rope_theta", R"(1.0, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"})"));
  ASSERT_TRUE(newer) << newer.error().text();
  EXPECT_EQ(newer->rope_theta, 5e5);
  auto older = from_config_json(with("num_key_value_heads", ""));
  ASSERT_TRUE(older) << older.error().text();
  EXPECT_EQ(older->kv_heads, small_config().heads);
}

TEST(ModelDescription, RefusesWhatWouldBeComputedDifferently) {
  expect_refused("model_type", "\"mistral\"", ErrorCode::unsupported);
  expect_refused("hidden_act", "\"gelu\"", ErrorCode::unsupported);
  expect_refused("attention_bias", "true", ErrorCode::unsupported);
  expect_refused("mlp_bias", "true", ErrorCode::unsupported);
  expect_refused("model_type", "7", ErrorCode::unsupported);
  auto other = to_config_json(small_config());
  other.replace(other.find("LlamaForCausalLM"), 16, "LlamaForTokenise");
  const auto refused = from_config_json(other);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
  EXPECT_THAT(refused.error().text(), HasSubstr("architectures"));
  expect_refused("attention_dropout", "0.1", ErrorCode::unsupported);
  expect_refused("partial_rotary_factor", "0.5", ErrorCode::unsupported);
  expect_refused("use_sliding_window", "true", ErrorCode::unsupported);
  expect_refused("layer_types", R"(["full_attention", "sliding_attention"])",
                 ErrorCode::unsupported);
  expect_refused("quantization_config", R"({"bits": 4})", ErrorCode::unsupported);
  // What says nothing new.
  EXPECT_TRUE(from_config_json(with("attention_dropout", "0")));
  EXPECT_TRUE(from_config_json(with("partial_rotary_factor", "1")));
  EXPECT_TRUE(from_config_json(with("layer_types", R"(["full_attention", "full_attention"])")));
}

TEST(ModelDescription, ReadsRotaryScalingAsEitherTransformersWritesIt) {
  const auto scaling = [](std::string_view key, std::string_view value) {
    const auto config = from_config_json(with(key, value));
    EXPECT_TRUE(config) << config.error().text();
    return config ? config->rope_scaling : RopeScaling();
  };
  using Kind = RopeScaling::Kind;
  EXPECT_EQ(scaling("rope_scaling", R"({"type": "linear", "factor": 2})"),
            (RopeScaling{.kind = Kind::linear, .factor = 2}));
  const RopeScaling llama3{.kind = Kind::llama3,
                           .factor = 8,
                           .original_positions = 16,
                           .low_frequency_factor = 1.5,
                           .high_frequency_factor = 3};
  for (const auto* key : {"rope_scaling", "rope_parameters"})
    EXPECT_EQ(scaling(key, R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.5,
                               "high_freq_factor": 3, "original_max_position_embeddings": 16})"),
              llama3);
  EXPECT_EQ(scaling("rope_scaling", R"({"rope_type": "yarn", "factor": 4,
                                        "original_max_position_embeddings": 16})"),
            (RopeScaling{.kind = Kind::yarn, .factor = 4, .original_positions = 16}));
  // The factor is that of the lengths where none is given: 64 / 16.
  EXPECT_EQ(scaling("rope_parameters", R"({"rope_type": "yarn", "beta_fast": 16, "beta_slow": 2,
                                           "original_max_position_embeddings": 16,
                                           "factor": null, "truncate": false,
                                           "attention_factor": 1.25})"),
            (RopeScaling{.kind = Kind::yarn,
                         .factor = 4,
                         .original_positions = 16,
                         .beta_fast = 16,
                         .beta_slow = 2,
                         .truncate = false,
                         .attention_factor = 1.25}));
}

TEST(ModelDescription, RefusesRotaryScalingThatItDoesNotKnow) {
  for (const auto* type : {"dynamic", "longrope", "su"})
    expect_refused("rope_scaling", fmt::format(R"({{"rope_type": "{}", "factor": 2}})", type),
                   ErrorCode::unsupported, type);
  expect_refused("rope_scaling", "3", ErrorCode::corrupt, "rope_scaling");
  expect_refused("rope_scaling", R"({"rope_type": "linear"})", ErrorCode::invalid_argument,
                 "factor");
  expect_refused("rope_scaling", R"({"rope_type": "llama3", "factor": 8})",
                 ErrorCode::invalid_argument, "low_freq_factor");
  for (const auto* key : {"partial_rotary_factor", "mscale", "mscale_all_dim", "long_factor"})
    expect_refused("rope_scaling",
                   fmt::format(R"({{"rope_type": "yarn", "factor": 2, "{}": 0.5}})", key),
                   ErrorCode::unsupported, key);
}

// Where Qwen3's class has other defaults than Llama's.
TEST(ModelDescription, WhatIsLeftOutIsAsTheFamilyHasIt) {
  const auto parsed = [](std::string_view family, std::string_view more) {
    return from_config_json(fmt::format(
        R"({{"model_type": "{}", "vocab_size": 256, "hidden_size": 4096, "intermediate_size": 64,
            "num_hidden_layers": 1, "num_attention_heads": 64{}}})",
        family, more));
  };
  const auto bert = parsed("bert", "");
  ASSERT_TRUE(bert) << bert.error().text();
  EXPECT_EQ(bert->sequence_max, 512);
  EXPECT_EQ(bert->token_types, 2);
  EXPECT_EQ(bert->norm_eps, 1e-12);
  EXPECT_EQ(bert->dropout, 0.1);
  EXPECT_EQ(bert->attention_dropout, 0.1);
  EXPECT_TRUE(bert->tied);
  const auto llama = parsed("llama", ""), qwen3 = parsed("qwen3", "");
  ASSERT_TRUE(llama && qwen3);
  EXPECT_EQ(llama->kv_heads, 64);
  EXPECT_EQ(llama->head_elements(), 64);
  EXPECT_EQ(llama->sequence_max, 2048);
  EXPECT_EQ(qwen3->family, "qwen3");
  EXPECT_EQ(qwen3->kv_heads, 32);
  EXPECT_EQ(qwen3->head_elements(), 128);
  EXPECT_EQ(qwen3->sequence_max, 32768);
  EXPECT_EQ(parsed("qwen3", ", \"num_key_value_heads\": null")->kv_heads, 64);
  // Only a Llama's width must be a multiple of its heads.
  EXPECT_TRUE(parsed("qwen3", ", \"hidden_size\": 4000"));
  EXPECT_FALSE(parsed("llama", ", \"hidden_size\": 4000, \"head_dim\": 128"));
}

TEST(ModelDescription, NamesTheFaultyField) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads"}) {
    expect_refused(key, "", ErrorCode::corrupt);
    expect_refused(key, "-1", ErrorCode::corrupt);
    expect_refused(key, "1.5", ErrorCode::corrupt);
    expect_refused(key, "\"8\"", ErrorCode::corrupt);
    expect_refused(key, "18446744073709551615", ErrorCode::corrupt);
  }
  expect_refused("model_type", "", ErrorCode::corrupt);
  expect_refused("rms_norm_eps", "\"small\"", ErrorCode::corrupt);
  expect_refused("tie_word_embeddings", "1", ErrorCode::corrupt);
  EXPECT_EQ(from_config_json(with("num_key_value_heads", "3")).error().code,
            ErrorCode::invalid_argument);
}

// Two models of equal shapes that compute differently must not look alike to sites.
TEST(ModelDescription, SettingsSayWhatShapesDoNot) {
  const auto text = settings_text(small_config());
  for (const auto& change : std::initializer_list<void (*)(ModelConfig&)>{
           [](ModelConfig& c) { c.heads *= 2; }, [](ModelConfig& c) { c.kv_heads *= 2; },
           [](ModelConfig& c) { c.rope_theta = 10001; }, [](ModelConfig& c) { c.norm_eps = 2e-5; },
           [](ModelConfig& c) {
             c.rope_scaling = {.kind = RopeScaling::Kind::linear, .factor = 2};
           },
           [](ModelConfig& c) { c.family = "other"; }}) {
    auto config = small_config();
    change(config);
    EXPECT_NE(settings_text(config), text);
  }
}

TEST(ModelDescription, SurvivesAnyText) {
  for (const char* text :
       {"", "{", "[]", "null", "{\"model_type\":3}", "{\"model_type\":\"llama\"}"})
    EXPECT_FALSE(from_config_json(text)) << text;
  // Deeper than a stack.
  const std::size_t levels = 300'000;
  const auto deep = std::string(levels, '[') + std::string(levels, ']');
  EXPECT_FALSE(from_config_json("{\"model_type\":\"llama\",\"rope_scaling\":" + deep + "}"));
  const auto whole = to_config_json(small_config());
  for (std::size_t n = 0; n + 2 < whole.size(); ++n)
    EXPECT_FALSE(from_config_json(whole.substr(0, n)));
  Random random(1);
  for (int i = 0; i < 2000; ++i) {
    auto damaged = whole;
    damaged[random.below(damaged.size())] = static_cast<char>(random.next());
    (void)from_config_json(damaged);
  }
}

}  // namespace
}  // namespace isthmus::runtime

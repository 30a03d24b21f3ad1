#include "runtime/model_description.h"

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

void expect_refused(std::string_view key, std::string_view value, ErrorCode code) {
  const auto config = from_config_json(with(key, value));
  ASSERT_FALSE(config) << key << " " << value;
  EXPECT_EQ(config.error().code, code) << config.error().text();
  EXPECT_THAT(config.error().text(), HasSubstr(std::string(key)));
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
        const auto again = from_config_json(to_config_json(config));
        ASSERT_TRUE(again) << again.error().text();
        EXPECT_EQ(*again, config);
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
  expect_refused("rope_scaling", R"({"type": "linear", "factor": 2})", ErrorCode::unsupported);
  const auto scaled = from_config_json(
      with("rope_theta", R"(1.0, "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3"})"));
  ASSERT_FALSE(scaled);
  EXPECT_EQ(scaled.error().code, ErrorCode::unsupported);
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

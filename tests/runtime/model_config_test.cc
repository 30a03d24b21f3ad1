#include "runtime/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace isthmus::runtime {
namespace {

ModelConfig good() {
  ModelConfig config;
  config.layers = 6;
  config.hidden = 256;
  config.heads = 8;
  config.kv_heads = 4;
  config.ffn_width = 704;
  config.vocabulary = 260;
  return config;
}

ModelConfig& experts(ModelConfig& config, std::int64_t count, std::int64_t per_token,
                     const char* family = "mixtral") {
  config.family = family;
  config.experts = count;
  config.experts_per_token = per_token;
  return config;
}

ModelConfig& bert(ModelConfig& config) {
  config.family = "bert";
  config.kv_heads = config.heads;
  config.token_types = 2;
  return config;
}

TEST(ModelConfig, CountsParametersOfAnEncoder) {
  auto config = good();
  bert(config).sequence_max = 100;
  EXPECT_TRUE(check(config).has_value());
  config.hidden = 8 * 33;  // a head may be odd, as nothing is rotated
  EXPECT_TRUE(check(config).has_value());
  config.hidden = 256;
  // Tokens, positions and types, and their norm; per layer q, k, v and o, the two of the
  // feed-forward layer, and two norms; of the head its own layer, a norm, and a bias per token.
  EXPECT_EQ(parameter_count(config), (260 + 100 + 2 + 2) * 256 +
                                         6 * (4 * 256 * 257 + 704 * 257 + 256 * 705 + 2 * 2 * 256) +
                                         256 * 257 + 512 + 260);
}

TEST(ModelConfig, CountsParameters) {
  EXPECT_TRUE(check(good()).has_value());
  // Embedding, and per layer: q and o, k and v, three of SwiGLU, two norms; the last norm.
  EXPECT_EQ(parameter_count(good()),
            260 * 256 + 6 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 704 * 256 + 512) + 256);
  auto untied = good();
  untied.tied = false;
  EXPECT_EQ(parameter_count(untied) - parameter_count(good()), 260 * 256);
}

TEST(ModelConfig, NamesTheFault) {
  struct Fault {
    std::function<void(ModelConfig&)> make;
    std::string word;
  };
  const std::vector<Fault> faults = {
      {[](auto& c) { c.layers = 0; }, "layers"},
      {[](auto& c) { c.hidden = -4; }, "hidden"},
      {[](auto& c) { c.heads = 7; }, "kv_heads"},
      {[](auto& c) { c.kv_heads = 16; }, "kv_heads"},
      {[](auto& c) { c.hidden = 260; }, "hidden"},
      {[](auto& c) { c.hidden = 8 * 33; }, "even"},
      {[](auto& c) { c.head_dim = 31; }, "even"},
      {[](auto& c) { c.ffn_width = 0; }, "ffn_width"},
      {[](auto& c) { c.vocabulary = 0; }, "vocabulary"},
      {[](auto& c) { c.rope_theta = 0; }, "rope_theta"},
      {[](auto& c) { c.norm_eps = 0; }, "norm_eps"},
      {[](auto& c) { c.family = "lama"; }, "llama"},
      {[](auto& c) { c.token_types = 2; }, "token_types"},
      {[](auto& c) { c.dropout = 0.1; }, "dropout"},
      {[](auto& c) { c.attention_dropout = 0.1; }, "attention_dropout"},
      {[](auto& c) { bert(c).token_types = 0; }, "token_types"},
      {[](auto& c) { bert(c).dropout = 1; }, "dropout"},
      {[](auto& c) { bert(c).attention_dropout = -0.1; }, "attention_dropout"},
      {[](auto& c) { bert(c).kv_heads = 4; }, "kv_heads"},
      {[](auto& c) { bert(c).head_dim = 16; }, "head_dim"},
      {[](auto& c) { bert(c).rope_theta = 1e6; }, "rope_theta"},
      {[](auto& c) { bert(c).tied = false; }, "tied"},
      {[](auto& c) { bert(c).experts = 4; }, "mixtral"},
      {[](auto& c) { c.experts = 4; }, "mixtral"},
      {[](auto& c) { c.dense_layers = {0}; }, "qwen3_moe"},
      {[](auto& c) { c.family = "mixtral"; }, "experts"},
      {[](auto& c) { experts(c, 4, 0); }, "experts_per_token"},
      {[](auto& c) { experts(c, 4, 5); }, "experts_per_token"},
      {[](auto& c) { experts(c, 1025, 5); }, "experts"},
      {[](auto& c) { experts(c, 4, 2).expert_width = 8; }, "expert_width"},
      {[](auto& c) { experts(c, 4, 2).normalise_top_k = false; }, "normalise_top_k"},
      {[](auto& c) { experts(c, 4, 2).dense_layers = {0}; }, "each layer of a mixtral"},
      {[](auto& c) { experts(c, 4, 2, "qwen3_moe").dense_layers = {6}; }, "dense_layers"},
      {[](auto& c) {
         experts(c, 4, 2, "qwen3_moe").dense_layers = {1, 1};
       },
       "dense_layers"},
      {[](auto& c) { experts(c, 4, 2, "qwen3_moe").dense_layers = {0, 1, 2, 3, 4, 5}; },
       "dense_layers"},
  };
  for (const auto& fault : faults) {
    auto config = good();
    fault.make(config);
    const auto result = check(config);
    ASSERT_FALSE(result.has_value()) << fault.word;
    EXPECT_THAT(result.error().text(), testing::HasSubstr(fault.word));
  }
}

}  // namespace
}  // namespace isthmus::runtime

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

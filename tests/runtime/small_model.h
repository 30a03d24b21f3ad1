// A model small enough to train in milliseconds, and text for it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/random.h"
#include "base/thread_pool.h"
#include "runtime/family.h"
#include "runtime/model.h"

namespace isthmus::runtime {

inline ModelConfig small_config() {
  ModelConfig config;
  config.layers = 2;
  config.hidden = 32;
  config.heads = 4;
  config.kv_heads = 2;
  config.ffn_width = 48;
  config.vocabulary = 260;
  config.sequence_max = 64;
  return config;
}

// The same of any family; with experts, or dropout, where it has them.
inline ModelConfig small_config(const std::string& family) {
  auto config = small_config();
  config.family = family;
  if (family == "bert") {
    config.kv_heads = config.heads;
    config.token_types = 2;
    config.dropout = 0.1;
    config.attention_dropout = 0.2;
    return config;
  }
  if (!find_family(family)->has_experts) return config;
  config.ffn_width = 20;
  config.experts = 5;
  config.experts_per_token = 2;
  if (family == "qwen2_moe") config.shared_expert_width = 14;
  if (family == "qwen3_moe") {
    config.expert_width = 12;
    config.normalise_top_k = false;
    config.dense_layers = {0};
  }
  return config;
}

inline BatchShape small_shape() { return {.micro_batch = 2, .sequence = 24}; }

inline constexpr std::size_t kParametersMax = 200'000;  // of any model that tests train

inline std::unique_ptr<Model> make_model(ThreadPool& pool, const ModelConfig& config,
                                         const BatchShape& shape, std::uint64_t seed = 1) {
  auto model = Model::create(config, shape, pool);
  EXPECT_TRUE(model) << model.error().text();
  EXPECT_LE((*model)->parameters().size(), kParametersMax);
  (*model)->initialise(seed);
  return std::move(*model);
}

inline std::unique_ptr<Model> make_small_model(ThreadPool& pool, std::uint64_t seed = 1) {
  return make_model(pool, small_config(), small_shape(), seed);
}

// Words from a small dictionary: something to learn.
inline std::string sample_text(std::size_t words, std::uint64_t seed) {
  constexpr const char* kWords[] = {"isthmus", "narrow", "strip", "joins", "two", "lands", "über"};
  Random random(seed);
  std::string text;
  for (std::size_t i = 0; i < words; ++i) {
    text += kWords[random.below(std::size(kWords))];
    text += random.below(12) == 0 ? "\n\n" : " ";
  }
  return text;
}

}  // namespace isthmus::runtime

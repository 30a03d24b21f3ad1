// A family is a function from a configuration to a Program; each lives in a file of its own. Here
// are all of them, and the choice among them.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "runtime/model_config.h"
#include "runtime/program.h"

namespace isthmus::runtime {

// How a program ends: in the loss of targets, in the scores of every next token, or, where texts
// are continued, in what is kept of the tokens.
enum class Head : std::uint8_t { loss, logits, none };

struct Family {
  std::string_view name;          // in site files, and the model_type of a config.json
  std::string_view architecture;  // the class in transformers that loads it
  std::string_view meaning;       // for people, in half a sentence
  bool heads_divide_hidden;       // what its class asks of a configuration
  // Where config.json has no such field.
  std::int64_t head_dim;      // 0: hidden / heads
  std::int64_t kv_heads;      // 0: as many as heads
  std::int64_t sequence_max;  // of max_position_embeddings
  double rope_theta = 10000;
  // A mixture of experts, and what its class lets a configuration say of it.
  bool has_experts = false;
  bool experts_have_width = false;  // of their own, beside that of dense layers
  std::int64_t experts = 0;         // where config.json does not say, as the next two
  std::int64_t experts_per_token = 0;
  std::int64_t expert_width = 0;
  bool may_leave_weights = false;  // as they come out of softmax, over all experts
  bool may_have_dense_layers = false;
  bool has_shared_expert = false;
  std::int64_t shared_expert_width = 0;
  // What its models are trained for. What predicts hidden tokens is an encoder: it sees both ways,
  // has learnt positions and continues no text.
  Objective objective = Objective::next_token;
  std::int64_t token_types = 0;
  Program (*program)(const ModelConfig& config, const BatchShape& shape, Head head) = nullptr;
};

std::span<const Family> families();
const Family* find_family(std::string_view name);  // nullptr: none
std::vector<std::string_view> family_names();
std::vector<std::string_view> family_names_with_experts();

// Of a config that checks.
Objective objective_of(const ModelConfig& config);

// The forward list; of a config that checks, for a sequence of at most its sequence_max.
Program build_program(const ModelConfig& config, const BatchShape& shape, Head head);

// llama.cc: Llama 1 to 3 (Touvron et al. 2023): pre-norm decoder, RoPE, grouped-query attention,
// SwiGLU, no biases.
Program llama_program(const ModelConfig& config, const BatchShape& shape, Head head);
// qwen3.cc: Qwen3 (Yang et al. 2025): as Llama, but each head of the queries and keys is normalised
// before it is rotated.
Program qwen3_program(const ModelConfig& config, const BatchShape& shape, Head head);
// mixtral.cc: Mixtral (Jiang et al. 2024): as Llama, with experts in place of each SwiGLU.
Program mixtral_program(const ModelConfig& config, const BatchShape& shape, Head head);
// qwen3_moe.cc: Qwen3-MoE: as Qwen3, with many small experts in all layers or some.
Program qwen3_moe_program(const ModelConfig& config, const BatchShape& shape, Head head);
// qwen2_moe.cc: Qwen2-MoE: biases on queries, keys and values; beside the experts that are chosen
// one that each token takes.
Program qwen2_moe_program(const ModelConfig& config, const BatchShape& shape, Head head);
// bert.cc: BERT (Devlin et al. 2018) with its head for masked tokens: post-norm encoder, biases,
// GELU, learnt positions. All tokens are of type 0, as where there are no pairs of sentences.
Program bert_program(const ModelConfig& config, const BatchShape& shape, Head head);

}  // namespace isthmus::runtime

#include "runtime/family.h"

#include <algorithm>
#include <array>

#include "base/assert.h"

namespace isthmus::runtime {
namespace {

constexpr std::array kFamilies{
    Family{
        .name = "llama",
        .architecture = "LlamaForCausalLM",
        .meaning = "a Llama decoder (RMSNorm, rotary positions, grouped-query attention, SwiGLU)",
        .heads_divide_hidden = true,
        .head_dim = 0,
        .kv_heads = 0,
        .sequence_max = 2048,
        .program = llama_program},
    Family{.name = "qwen3",
           .architecture = "Qwen3ForCausalLM",
           .meaning = "the same with RMSNorm on each head of queries and keys",
           .heads_divide_hidden = false,
           .head_dim = 128,
           .kv_heads = 32,
           .sequence_max = 32768,
           .program = qwen3_program},
    Family{.name = "mixtral",
           .architecture = "MixtralForCausalLM",
           .meaning = "a Llama with a mixture of experts in each layer",
           .heads_divide_hidden = false,
           .head_dim = 0,
           .kv_heads = 8,
           .sequence_max = 131072,
           .rope_theta = 1e6,
           .has_experts = true,
           .experts = 8,
           .experts_per_token = 2,
           .program = mixtral_program},
    Family{.name = "qwen3_moe",
           .architecture = "Qwen3MoeForCausalLM",
           .meaning = "a Qwen3 with many small experts in its layers",
           .heads_divide_hidden = false,
           .head_dim = 0,
           .kv_heads = 4,
           .sequence_max = 32768,
           .has_experts = true,
           .experts_have_width = true,
           .experts = 128,
           .experts_per_token = 8,
           .expert_width = 768,
           .may_leave_weights = true,
           .may_have_dense_layers = true,
           .program = qwen3_moe_program},
    Family{.name = "qwen2_moe",
           .architecture = "Qwen2MoeForCausalLM",
           .meaning =
               "a Llama with biases on queries, keys and values, many small experts, and one "
               "that all tokens share",
           .heads_divide_hidden = true,
           .head_dim = 0,
           .kv_heads = 16,
           .sequence_max = 32768,
           .has_experts = true,
           .experts_have_width = true,
           .experts = 60,
           .experts_per_token = 4,
           .expert_width = 1408,
           .may_leave_weights = true,
           .may_have_dense_layers = true,
           .has_shared_expert = true,
           .shared_expert_width = 5632,
           .program = qwen2_moe_program},
    Family{.name = "bert",
           .architecture = "BertForMaskedLM",
           .meaning =
               "a BERT encoder (both ways, LayerNorm after each part, learnt positions, GELU), "
               "which learns to predict hidden tokens",
           .heads_divide_hidden = true,
           .head_dim = 0,
           .kv_heads = 0,
           .sequence_max = 512,
           .objective = Objective::masked_tokens,
           .token_types = 2,
           .program = bert_program},
};

}  // namespace

std::span<const Family> families() { return kFamilies; }

const Family* find_family(std::string_view name) {
  const auto* found = std::find_if(kFamilies.begin(), kFamilies.end(),
                                   [&](const Family& f) { return f.name == name; });
  return found == kFamilies.end() ? nullptr : found;
}

std::vector<std::string_view> family_names() {
  std::vector<std::string_view> names;
  for (const auto& family : kFamilies) names.push_back(family.name);
  return names;
}

std::vector<std::string_view> family_names_with_experts() {
  std::vector<std::string_view> names;
  for (const auto& family : kFamilies)
    if (family.has_experts) names.push_back(family.name);
  return names;
}

Objective objective_of(const ModelConfig& config) {
  const auto* family = find_family(config.family);
  ISTHMUS_ASSERT(family != nullptr);
  return family->objective;
}

Program build_program(const ModelConfig& config, const BatchShape& shape, Head head) {
  const auto* family = find_family(config.family);
  ISTHMUS_ASSERT(family != nullptr);
  return family->program(config, shape, head);
}

}  // namespace isthmus::runtime

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

Program build_program(const ModelConfig& config, const BatchShape& shape, Head head) {
  const auto* family = find_family(config.family);
  ISTHMUS_ASSERT(family != nullptr);
  return family->program(config, shape, head);
}

}  // namespace isthmus::runtime

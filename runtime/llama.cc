#include <fmt/core.h>

#include "base/assert.h"
#include "runtime/family.h"

namespace isthmus::runtime {

Program llama_program(const ModelConfig& config, const BatchShape& shape, Head head) {
  const auto head_dim = config.head_elements();
  const auto q = config.heads * head_dim;
  const auto kv = config.kv_heads * head_dim;
  const auto hidden = config.hidden;
  ProgramBuilder b(shape);

  const auto embedding = b.matrix({{"model.embed_tokens.weight", config.vocabulary}}, hidden);
  const auto table = b.rope_table(config.rope_theta, head_dim);
  auto x = b.embed(embedding);

  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const auto name = [layer](std::string_view part) {
      return fmt::format("model.layers.{}.{}.weight", layer, part);
    };
    const auto norm_1 = b.norm_weight(name("input_layernorm"), hidden);
    const auto qkv = b.matrix({{name("self_attn.q_proj"), q},
                               {name("self_attn.k_proj"), kv},
                               {name("self_attn.v_proj"), kv}},
                              hidden);
    const auto o = b.matrix({{name("self_attn.o_proj"), hidden}}, q);
    const auto norm_2 = b.norm_weight(name("post_attention_layernorm"), hidden);
    const auto gate_up = b.matrix(
        {{name("mlp.gate_proj"), config.ffn_width}, {name("mlp.up_proj"), config.ffn_width}},
        hidden);
    const auto down = b.matrix({{name("mlp.down_proj"), hidden}}, config.ffn_width);

    auto h = b.norm(x, norm_1, config.norm_eps);
    h = b.rope(b.linear(h, qkv), table, config.heads + config.kv_heads, head_dim);
    h = b.attention(h, config.heads, config.kv_heads, head_dim);
    x = b.add(x, b.linear_to_residual(h, o));
    h = b.norm(x, norm_2, config.norm_eps);
    h = b.glu(b.linear(h, gate_up));
    x = b.add(x, b.linear_to_residual(h, down));
  }

  x = b.norm(x, b.norm_weight("model.norm.weight", hidden), config.norm_eps);
  const auto output =
      config.tied ? embedding : b.matrix({{"lm_head.weight", config.vocabulary}}, hidden);
  if (head == Head::loss)
    b.head_loss(x, output);
  else
    b.head_logits(x, output);
  return b.take();
}

Program build_program(const ModelConfig& config, const BatchShape& shape, Head head) {
  ISTHMUS_ASSERT(config.family == "llama");
  return llama_program(config, shape, head);
}

}  // namespace isthmus::runtime

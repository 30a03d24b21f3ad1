#include "runtime/decoder.h"

#include <fmt/core.h>

#include <vector>

namespace isthmus::runtime {

Decoder::Decoder(const ModelConfig& config, const BatchShape& shape, Head head)
    : config_(config),
      head_(head),
      builder_(shape, head == Head::loss),
      embedding_(
          builder_.matrix({{"model.embed_tokens.weight", config.vocabulary}}, config.hidden)),
      rope_table_(
          builder_.rope_table(config.rope_theta, config.rope_scaling, config.head_elements())),
      x_(builder_.embed(embedding_)) {}

std::string Decoder::name(std::int64_t layer, std::string_view part) {
  return fmt::format("model.layers.{}.{}.weight", layer, part);
}

void Decoder::add_attention(std::int64_t layer, HeadNorms norms, Biases biases) {
  const auto head_dim = config_.head_elements();
  const auto q_rows = config_.heads * head_dim;
  const auto kv_rows = config_.kv_heads * head_dim;
  auto& b = builder_;
  b.begin_block();
  const auto norm = b.norm_weight(name(layer, "input_layernorm"), config_.hidden);
  const auto qkv = b.matrix({{name(layer, "self_attn.q_proj"), q_rows},
                             {name(layer, "self_attn.k_proj"), kv_rows},
                             {name(layer, "self_attn.v_proj"), kv_rows}},
                            config_.hidden);
  const auto o = b.matrix({{name(layer, "self_attn.o_proj"), config_.hidden}}, q_rows);

  const auto normal = b.norm(x_, norm, config_.norm_eps);
  auto h = kNoValue;
  if (biases == Biases::yes) {
    const auto bias = [&](std::string_view part) {
      return fmt::format("model.layers.{}.self_attn.{}.bias", layer, part);
    };
    h = b.biased_linear(
        normal, qkv,
        b.bias({{bias("q_proj"), q_rows}, {bias("k_proj"), kv_rows}, {bias("v_proj"), kv_rows}}));
  } else {
    h = b.linear(normal, qkv);
  }
  if (norms == HeadNorms::yes) {
    const auto q_norm = b.norm_weight(name(layer, "self_attn.q_norm"), head_dim);
    const auto k_norm = b.norm_weight(name(layer, "self_attn.k_norm"), head_dim);
    h = b.norm_rope(h, q_norm, k_norm, rope_table_, config_.heads, config_.kv_heads,
                    config_.norm_eps);
  } else {
    h = b.rope(h, rope_table_, config_.heads + config_.kv_heads, head_dim);
  }
  h = b.attention(h, config_.heads, config_.kv_heads, head_dim);
  x_ = b.add(x_, b.linear_to_residual(h, o));
}

ValueId Decoder::feed_forward_norm(std::int64_t layer) {
  const auto weight = builder_.norm_weight(name(layer, "post_attention_layernorm"), config_.hidden);
  return builder_.norm(x_, weight, config_.norm_eps);
}

void Decoder::add_feed_forward(std::int64_t layer) {
  auto& b = builder_;
  const auto norm = feed_forward_norm(layer);
  const auto gate_up = b.matrix({{name(layer, "mlp.gate_proj"), config_.ffn_width},
                                 {name(layer, "mlp.up_proj"), config_.ffn_width}},
                                config_.hidden);
  const auto down = b.matrix({{name(layer, "mlp.down_proj"), config_.hidden}}, config_.ffn_width);

  x_ = b.add(x_, b.linear_to_residual(b.glu(b.linear(norm, gate_up)), down));
}

void Decoder::add_experts(std::int64_t layer, const ExpertNames& names) {
  if (!config_.has_experts(layer)) return add_feed_forward(layer);
  auto& b = builder_;
  const auto width = config_.expert_elements();
  const auto of_block = [&](const std::string& part) {
    return name(layer, fmt::format("{}.{}", names.block, part));
  };
  const auto norm = feed_forward_norm(layer);
  const auto router = b.matrix({{of_block("gate"), config_.experts}}, config_.hidden);
  std::vector<ProgramBuilder::Part> gate_up, down;
  for (std::int64_t e = 0; e < config_.experts; ++e) {
    const auto of_expert = [&](std::string_view part) {
      return of_block(fmt::format("experts.{}.{}", e, part));
    };
    gate_up.push_back({of_expert(names.gate_proj), width});
    gate_up.push_back({of_expert(names.up_proj), width});
    down.push_back({of_expert(names.down_proj), config_.hidden});
  }
  Routing routing;
  routing.top_k = config_.experts_per_token;
  routing.normalised = config_.normalise_top_k;
  routing.layer = expert_layers_++;
  routing.layers = config_.expert_layers();
  const auto all_gate_up = b.matrix(gate_up, config_.hidden);
  const auto all_down = b.matrix(down, width);
  auto sum = b.experts(norm, router, all_gate_up, all_down, routing);
  if (!names.shared.empty()) sum = b.add(sum, shared_expert(layer, norm, names));
  x_ = b.add(x_, sum);
}

ValueId Decoder::shared_expert(std::int64_t layer, ValueId norm, const ExpertNames& names) {
  auto& b = builder_;
  const auto width = config_.shared_expert_width;
  const auto of_expert = [&](std::string_view part) {
    return name(layer, fmt::format("{}.{}.{}", names.block, names.shared, part));
  };
  const auto gate = b.matrix(
      {{name(layer, fmt::format("{}.{}_gate", names.block, names.shared)), 1}}, config_.hidden);
  const auto gate_up = b.matrix(
      {{of_expert(names.gate_proj), width}, {of_expert(names.up_proj), width}}, config_.hidden);
  const auto down = b.matrix({{of_expert(names.down_proj), config_.hidden}}, width);
  return b.shared_expert(norm, gate, gate_up, down);
}

Program Decoder::finish() {
  auto& b = builder_;
  b.end_blocks();
  const auto x = b.norm(x_, b.norm_weight("model.norm.weight", config_.hidden), config_.norm_eps);
  const auto output = config_.tied
                          ? embedding_
                          : b.matrix({{"lm_head.weight", config_.vocabulary}}, config_.hidden);
  switch (head_) {
    case Head::loss:
      b.head_loss(x, output);
      break;
    case Head::logits:
      b.head_logits(x, output);
      break;
    case Head::none:
      b.no_head();
      break;
  }
  return b.take();
}

}  // namespace isthmus::runtime

// Decoder: what the pre-norm decoders share (Llama, Qwen3, …), so that a family says only how its
// layers differ:
//
//   x = embed(tokens);  for each layer:  x += attention(norm(x));  x += feed_forward(norm(x))
//   head(norm(x))
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/family.h"

namespace isthmus::runtime {

// Whether each head of the queries and keys is normalised before it is rotated.
enum class HeadNorms : bool { no, yes };

// Whether queries, keys and values have biases.
enum class Biases : bool { no, yes };

// What a family calls the parts of a layer's experts on disk.
struct ExpertNames {
  std::string_view block;  // model.layers.3.BLOCK.experts.0.GATE_PROJ.weight
  std::string_view gate_proj;
  std::string_view up_proj;
  std::string_view down_proj;
  std::string_view shared = {};  // the expert that each token takes besides; none
};

class Decoder {
 public:
  Decoder(const ModelConfig& config, const BatchShape& shape, Head head);

  // Grouped-query attention with rotary positions, on the norm of x. A layer begins with it.
  void add_attention(std::int64_t layer, HeadNorms norms, Biases biases = Biases::no);
  // SwiGLU on the norm of x.
  void add_feed_forward(std::int64_t layer);
  // A mixture of experts, each a SwiGLU, on the norm of x, and the shared one where there is one;
  // in a dense layer one SwiGLU.
  void add_experts(std::int64_t layer, const ExpertNames& names);

  Program finish();

 private:
  // "model.layers.3.mlp.down_proj.weight"
  static std::string name(std::int64_t layer, std::string_view part);
  ValueId feed_forward_norm(std::int64_t layer);
  ValueId shared_expert(std::int64_t layer, ValueId norm, const ExpertNames& names);

  const ModelConfig& config_;
  Head head_;
  ProgramBuilder builder_;
  std::size_t embedding_;
  ValueId rope_table_;
  ValueId x_;
  std::int64_t expert_layers_ = 0;  // so far
};

}  // namespace isthmus::runtime

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

class Decoder {
 public:
  Decoder(const ModelConfig& config, const BatchShape& shape);

  // Grouped-query attention with rotary positions, on the norm of x. A layer begins with it.
  void add_attention(std::int64_t layer, HeadNorms norms);
  // SwiGLU on the norm of x.
  void add_feed_forward(std::int64_t layer);

  Program finish(Head head);

 private:
  // "model.layers.3.mlp.down_proj.weight"
  static std::string name(std::int64_t layer, std::string_view part);

  const ModelConfig& config_;
  ProgramBuilder builder_;
  std::size_t embedding_;
  ValueId rope_table_;
  ValueId x_;
};

}  // namespace isthmus::runtime

#include "runtime/decoder.h"

namespace isthmus::runtime {

Program qwen3_moe_program(const ModelConfig& config, const BatchShape& shape, Head head) {
  const ExpertNames names{
      .block = "mlp", .gate_proj = "gate_proj", .up_proj = "up_proj", .down_proj = "down_proj"};
  Decoder decoder(config, shape, head);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    decoder.add_attention(layer, HeadNorms::yes);
    decoder.add_experts(layer, names);
  }
  return decoder.finish();
}

}  // namespace isthmus::runtime

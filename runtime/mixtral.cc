#include "runtime/decoder.h"

namespace isthmus::runtime {

Program mixtral_program(const ModelConfig& config, const BatchShape& shape, Head head) {
  const ExpertNames names{
      .block = "block_sparse_moe", .gate_proj = "w1", .up_proj = "w3", .down_proj = "w2"};
  Decoder decoder(config, shape, head);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    decoder.add_attention(layer, HeadNorms::no);
    decoder.add_experts(layer, names);
  }
  return decoder.finish();
}

}  // namespace isthmus::runtime

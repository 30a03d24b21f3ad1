#include "runtime/decoder.h"

namespace isthmus::runtime {

Program qwen3_program(const ModelConfig& config, const BatchShape& shape, Head head) {
  Decoder decoder(config, shape, head);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    decoder.add_attention(layer, HeadNorms::yes);
    decoder.add_feed_forward(layer);
  }
  return decoder.finish();
}

}  // namespace isthmus::runtime

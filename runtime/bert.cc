#include <fmt/core.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/assert.h"
#include "runtime/family.h"

namespace isthmus::runtime {
namespace {

// A post-norm encoder: each part is added to the residual stream, which then is normalised itself.
//
//   x = norm(token + type 0 + position);  for each layer:  x = norm(x + attention(x))
//                                                          x = norm(x + feed_forward(x))
//   scores = embedding · norm(gelu(dense(x))) + bias
//
// Dropout: of x, of what parts add, and of the weights of attention.
class Encoder {
 public:
  Encoder(const ModelConfig& config, const BatchShape& shape, Head head)
      : config_(config),
        head_(head),
        builder_(shape, head == Head::loss),
        embedding_(matrix("bert.embeddings.word_embeddings", config.vocabulary, config.hidden)) {
    ISTHMUS_ASSERT(head != Head::none);
    auto& b = builder_;
    const auto positions =
        matrix("bert.embeddings.position_embeddings", config.sequence_max, config.hidden);
    const auto types =
        matrix("bert.embeddings.token_type_embeddings", config.token_types, config.hidden);
    x_ = b.add_rows(b.add_rows(b.embed(embedding_), types, 1), positions, shape.sequence);
    x_ = b.dropout(norm("bert.embeddings.LayerNorm", x_), config.dropout);
  }

  void add_layer(std::int64_t layer) {
    const auto of_layer = [&](std::string_view part) {
      return fmt::format("bert.encoder.layer.{}.{}", layer, part);
    };
    auto& b = builder_;
    const auto hidden = config_.hidden;
    b.begin_block();
    std::vector<ProgramBuilder::Part> weights, biases;
    for (const auto* part : {"query", "key", "value"}) {
      const auto name = of_layer(fmt::format("attention.self.{}", part));
      weights.push_back({name + ".weight", hidden});
      biases.push_back({name + ".bias", hidden});
    }
    const auto qkv = b.matrix(weights, hidden);
    const auto heads =
        b.attention_both_ways(b.biased_linear(b.operand(x_), qkv, b.bias(biases)), config_.heads,
                              config_.head_elements(), config_.attention_dropout);
    add(of_layer("attention.output"), heads, hidden);
    const auto wide =
        b.gelu(dense(of_layer("intermediate.dense"), b.operand(x_), config_.ffn_width));
    add(of_layer("output"), wide, config_.ffn_width);
  }

  Program finish() {
    auto& b = builder_;
    b.end_blocks();
    const auto h = b.gelu(dense("cls.predictions.transform.dense", b.operand(x_), config_.hidden));
    const auto x = b.operand(norm("cls.predictions.transform.LayerNorm", h));
    const auto bias = b.bias({{"cls.predictions.bias", config_.vocabulary}});
    if (head_ == Head::loss)
      b.head_loss(x, embedding_, bias);
    else
      b.head_logits(x, embedding_, bias);
    return b.take();
  }

 private:
  std::size_t matrix(const std::string& module, std::int64_t rows, std::int64_t columns) {
    return builder_.matrix({{module + ".weight", rows}}, columns);
  }
  ValueId norm(const std::string& module, ValueId x) {
    const auto weight = builder_.norm_weight(module + ".weight", config_.hidden);
    const auto bias = builder_.bias({{module + ".bias", config_.hidden}});
    return builder_.layer_norm(x, weight, bias, config_.norm_eps);
  }
  ValueId dense(const std::string& module, ValueId x, std::int64_t out) {
    const auto weight = matrix(module, out, config_.hidden);
    return builder_.biased_linear(x, weight, builder_.bias({{module + ".bias", out}}));
  }
  // What `part` makes of y becomes part of x.
  void add(const std::string& part, ValueId y, std::int64_t width) {
    auto& b = builder_;
    const auto weight = matrix(part + ".dense", config_.hidden, width);
    const auto bias = b.bias({{part + ".dense.bias", config_.hidden}});
    const auto made = b.dropout(b.biased_linear_to_residual(y, weight, bias), config_.dropout);
    x_ = norm(part + ".LayerNorm", b.add(made, x_));
  }

  const ModelConfig& config_;
  Head head_;
  ProgramBuilder builder_;
  std::size_t embedding_;
  ValueId x_ = kNoValue;
};

}  // namespace

Program bert_program(const ModelConfig& config, const BatchShape& shape, Head head) {
  Encoder encoder(config, shape, head);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) encoder.add_layer(layer);
  return encoder.finish();
}

}  // namespace isthmus::runtime

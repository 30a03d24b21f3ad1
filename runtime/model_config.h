// ModelConfig: what a model is, in the numbers of its family. The same for all sites of a
// federation; how one site computes it (batch, precision, threads) is BatchShape and Model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "runtime/rope_scaling.h"

namespace isthmus::runtime {

struct ModelConfig {
  std::string family = "llama";  // of families() (runtime/family.h)
  std::int64_t layers = 0;       // blocks of attention and feed-forward layer
  std::int64_t hidden = 0;       // width of the residual stream
  std::int64_t heads = 0;        // query heads
  std::int64_t kv_heads = 0;     // key and value heads; divides heads
  std::int64_t head_dim = 0;   // elements of a head, even where they are rotated; 0: hidden / heads
  std::int64_t ffn_width = 0;  // width of the feed-forward layer
  // A mixture of experts: in place of one SwiGLU a layer has several, of which a token takes some.
  std::int64_t experts = 0;              // of a layer; 0: none, the layer is dense
  std::int64_t experts_per_token = 0;    // the likeliest ones by its router
  std::int64_t expert_width = 0;         // of an expert's SwiGLU; 0: ffn_width
  std::int64_t shared_expert_width = 0;  // of the SwiGLU that each token takes besides; 0: none
  bool normalise_top_k = true;           // a token's weights are divided by their sum
  std::vector<int> dense_layers = {};    // layers without experts all the same; ascending
  std::int64_t vocabulary = 0;           // tokens are in [0, vocabulary)
  bool tied = true;                      // the head is the embedding
  double rope_theta = 10000.0;           // base of the rotary frequencies
  RopeScaling rope_scaling = {};         // how they are stretched
  double norm_eps = 1e-5;                // added to the mean square, or variance
  std::int64_t sequence_max = 2048;      // longest sequence, in tokens (max_position_embeddings)
  // Of an encoder.
  std::int64_t token_types = 0;  // that the embedding knows; what is trained is of type 0
  double dropout = 0;            // of x and of what is added to it, while it trains
  double attention_dropout = 0;  // of the weights of attention

  std::int64_t head_elements() const { return head_dim != 0 ? head_dim : hidden / heads; }
  std::int64_t expert_elements() const { return expert_width != 0 ? expert_width : ffn_width; }
  bool has_experts(std::int64_t layer) const;
  std::int64_t expert_layers() const;
  bool operator==(const ModelConfig&) const = default;
};

// Every number in range and consistent with the others. invalid_argument, unsupported (a family we
// do not have).
Result<void> check(const ModelConfig& config);

// The number of parameters; of a config that checks.
std::int64_t parameter_count(const ModelConfig& config);

// What a model learns to predict: each token from those before it, or hidden tokens from all that
// is around them (masked-language modelling; runtime/masking.h).
enum class Objective : std::uint8_t { next_token, masked_tokens };

std::string_view to_string(Objective objective);

// The numerical format of a site's training. bf16: matrices are multiplied in bf16 with f32 sums;
// the residual stream, the norms, the loss, all gradients of parameters and the parameters
// themselves stay f32.
enum class Precision { f32, bf16 };

std::string_view to_string(Precision precision);

// What of the activations is made again for the backward pass, instead of kept: nothing, or all
// but the inputs of blocks (runtime/recompute.h).
enum class Recompute { off, all };

std::string_view to_string(Recompute recompute);

// Of a sequence that holds several documents: a token sees all that is before it, or what is of its
// own document alone. Rotary positions are of distances, so that a document is the same wherever
// in a sequence it begins.
enum class Documents { joined, apart };

std::string_view to_string(Documents documents);

// Over what the balance of experts is measured: each sequence by itself, so that nothing depends on
// what it is computed with; or a micro-batch and all layers as a whole, as transformers does.
enum class BalanceScope { sequence, micro_batch };

std::string_view to_string(BalanceScope scope);

// How a mixture of experts is trained; of evaluation and text generation all of it is off.
struct RouterOptions {
  // An expert takes of a sequence this many times an even share of its tokens, and drops the others
  // (GShard, Lepikhin et al. 2020); 0: it takes all.
  double capacity = 0;
  // What is added to the loss, per counted target: this times the balance loss (Switch
  // Transformers, Fedus et al. 2021), and this times the z loss (ST-MoE, Zoph et al. 2022); means
  // over layers.
  double balance = 0;
  double z = 0;
  BalanceScope scope = BalanceScope::sequence;
  bool operator==(const RouterOptions&) const = default;
};

// What one call computes: micro_batch sequences of `sequence` tokens each.
struct BatchShape {
  std::int64_t micro_batch = 1;
  std::int64_t sequence = 256;  // at most ModelConfig::sequence_max
  Precision precision = Precision::f32;
  Recompute recompute = Recompute::off;
  Documents documents = Documents::joined;
  RouterOptions router = {};
  bool drops = false;  // as the model's dropout says; training_program() alone sets it
  // Of a list that continues texts (runtime/decoding.h): of how many texts, and how many tokens of
  // each, the keys and values are kept. Then micro_batch * sequence is the number of rows of a run,
  // each of which is a token of any text.
  std::int64_t kept_texts = 0;
  std::int64_t kept_length = 0;

  std::int64_t tokens() const { return micro_batch * sequence; }
};

}  // namespace isthmus::runtime

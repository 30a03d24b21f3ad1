// A family is a function from a configuration to a Program; each lives in a file of its own. Here
// is the choice among them.
#pragma once

#include "runtime/model_config.h"
#include "runtime/program.h"

namespace isthmus::runtime {

// How a program ends: in the loss of targets, or in the scores of every next token.
enum class Head : std::uint8_t { loss, logits };

// The forward list; of a config that checks, for a sequence of at most its sequence_max.
Program build_program(const ModelConfig& config, const BatchShape& shape, Head head);

// llama.cc: Llama 2 and 3 (Touvron et al. 2023): pre-norm decoder, RoPE, grouped-query attention,
// SwiGLU, no biases; what Hugging Face calls LlamaForCausalLM without rope scaling.
Program llama_program(const ModelConfig& config, const BatchShape& shape, Head head);

}  // namespace isthmus::runtime

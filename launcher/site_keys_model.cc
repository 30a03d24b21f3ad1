// The keys of [model], [experts] and [lora].
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/low_rank.h"
#include "kernels/routing.h"
#include "launcher/site_keys.h"
#include "runtime/family.h"

namespace isthmus::launcher {
namespace {

ChoiceField family_field() {
  return {
      .get =
          [](const SiteFile& file) {
            const auto names = runtime::family_names();
            const auto at = std::find(names.begin(), names.end(), file.model.config.family);
            return static_cast<std::size_t>(at - names.begin());
          },
      .set = [](SiteFile& file,
                std::size_t index) { file.model.config.family = runtime::families()[index].name; }};
}

// "The architecture. llama: a Llama decoder; qwen3: …"
std::string_view family_meaning() {
  static const std::string meaning = [] {
    std::string text = "The architecture.";
    for (const auto& family : runtime::families())
      text += fmt::format("{}{}: {}", text.back() == '.' ? " " : "; ", family.name, family.meaning);
    return text + ".";
  }();
  return meaning;
}

}  // namespace

std::vector<SiteKey> model_keys() {
  using enum ValueKind;
  using runtime::ModelConfig;
  constexpr auto model = &SiteFile::model;
  constexpr auto config = &ModelOptions::config;

  return {
      {.section = "model",
       .name = "family",
       .kind = choice,
       .field = family_field(),
       .choices = runtime::family_names(),
       .meaning = family_meaning(),
       .shared = true},
      {.section = "model",
       .name = "from",
       .kind = path,
       .field = field(model, &ModelOptions::from),
       .meaning =
           "A Hugging Face directory (config.json; model.safetensors, or several files and their "
           "index) to start from. The other keys of this section are then read from it and must be "
           "left out.",
       .absent = "a new model, as the other keys say"},
      {.section = "model",
       .name = "layers",
       .kind = whole_number,
       .field = field(model, config, &ModelConfig::layers),
       .min = 1,
       .max = 1024,
       .unit = "blocks",
       .meaning = "Blocks of attention and feed-forward layer.",
       .absent = "only with `from`",
       .example = "6",
       .shared = true},
      {.section = "model",
       .name = "hidden",
       .kind = whole_number,
       .field = field(model, config, &ModelConfig::hidden),
       .min = 2,
       .max = 65536,
       .unit = "elements",
       .meaning = "Width of the residual stream; `heads` divides it, unless head_dim is given.",
       .absent = "only with `from`",
       .example = "256",
       .shared = true},
      {.section = "model",
       .name = "heads",
       .kind = whole_number,
       .field = field(model, config, &ModelConfig::heads),
       .min = 1,
       .max = 1024,
       .unit = "heads",
       .meaning = "Query heads of the attention.",
       .absent = "only with `from`",
       .example = "8",
       .shared = true},
      {.section = "model",
       .name = "kv_heads",
       .kind = whole_number,
       .field = field(model, config, &ModelConfig::kv_heads),
       .min = 1,
       .max = 1024,
       .unit = "heads",
       .meaning = "Key and value heads; divides `heads`.",
       .absent = "as many as `heads`",
       .example = "4",
       .shared = true},
      {.section = "model",
       .name = "head_dim",
       .kind = whole_number,
       .field = field(model, config, &ModelConfig::head_dim),
       .min = 2,
       .max = 1024,
       .unit = "elements",
       .meaning = "Size of a head, even. In a llama `heads` divides `hidden` all the same.",
       .absent = "`hidden` / `heads`",
       .shared = true},
      {.section = "model",
       .name = "ffn",
       .kind = whole_number,
       .field = field(model, config, &ModelConfig::ffn_width),
       .min = 1,
       .max = 1 << 20,
       .unit = "elements",
       .meaning = "Width of the feed-forward layer; of a mixture of experts, of each of them.",
       .absent = "only with `from`",
       .example = "704",
       .shared = true},
      {.section = "model",
       .name = "experts",
       .kind = whole_number,
       .field = field(model, config, &ModelConfig::experts),
       .min = 1,
       .max = kernels::kExpertsMax,
       .unit = "experts",
       .meaning = "Experts of a layer: SwiGLU layers of which each token takes some, as its router "
                  "says. Of a mixtral, a qwen2_moe and a qwen3_moe.",
       .absent = "only with `from`, or where the family has none",
       .shared = true},
      {.section = "model",
       .name = "experts_per_token",
       .kind = whole_number,
       .field = field(model, config, &ModelConfig::experts_per_token),
       .min = 1,
       .max = kernels::kExpertsMax,
       .unit = "experts",
       .meaning = "How many of them a token takes.",
       .absent = "only with `from`, or where the family has none",
       .shared = true},
      {.section = "model",
       .name = "expert_ffn",
       .kind = whole_number,
       .field = field(model, config, &ModelConfig::expert_width),
       .min = 1,
       .max = 1 << 20,
       .unit = "elements",
       .meaning = "Width of an expert, where it is not that of a dense layer; of a qwen2_moe and a "
                  "qwen3_moe.",
       .absent = "`ffn`",
       .shared = true},
      {.section = "model",
       .name = "shared_expert_ffn",
       .kind = whole_number,
       .field = field(model, config, &ModelConfig::shared_expert_width),
       .min = 1,
       .max = 1 << 20,
       .unit = "elements",
       .meaning = "Width of the expert that each token takes besides; of a qwen2_moe.",
       .absent = "only with `from`, or where the family has none",
       .shared = true},
      {.section = "model",
       .name = "dense_layers",
       .kind = ranges,
       .field = field(model, config, &ModelConfig::dense_layers),
       .meaning = "Layers that have one SwiGLU all the same, counted from 0; of a qwen2_moe and a "
                  "qwen3_moe.",
       .absent = "each layer has experts",
       .shared = true},
      {.section = "model",
       .name = "normalise_top_k",
       .kind = flag,
       .field = field(model, config, &ModelConfig::normalise_top_k),
       .meaning =
           "The weights of a token's experts are divided by their sum (softmax after top-k); "
           "false, of a qwen2_moe or a qwen3_moe, leaves them as softmax over all experts made "
           "them.",
       .shared = true},
      {.section = "model",
       .name = "vocabulary",
       .kind = whole_number,
       .field = field(model, config, &ModelConfig::vocabulary),
       .min = 256,
       .max = 1 << 22,
       .unit = "tokens",
       .meaning =
           "Number of tokens the model knows: at least those of its tokenizer; of bytes 256 and a "
           "few special ones.",
       .shared = true},
      {.section = "model",
       .name = "tokenizer",
       .kind = path,
       .field = field(model, &ModelOptions::tokenizer),
       .meaning = "What turns text into tokens: a Hugging Face tokenizer.json (byte-level BPE or "
                  "WordPiece), a SentencePiece model, or a folder with one of them. Its content is "
                  "part of the fingerprint.",
       .absent = "that of model.from, where it has one, else bytes"},
      {.section = "model",
       .name = "tied",
       .kind = flag,
       .field = field(model, config, &ModelConfig::tied),
       .meaning = "The output head is the embedding.",
       .shared = true},
      {.section = "model",
       .name = "context",
       .kind = whole_number,
       .field = field(model, config, &ModelConfig::sequence_max),
       .min = 1,
       .max = 1 << 24,
       .unit = "tokens",
       .meaning =
           "Longest sequence the model is meant for (max_position_embeddings). A bert learns "
           "an embedding for each position, so that all sites have the same number."},
      {.section = "model",
       .name = "rope_theta",
       .kind = number,
       .field = field(model, config, &ModelConfig::rope_theta),
       .min = 1,
       .max = 1e11,
       .above_min = true,
       .meaning = "Base of the rotary frequencies.",
       .shared = true},
      {.section = "model",
       .name = "norm_eps",
       .kind = number,
       .field = field(model, config, &ModelConfig::norm_eps),
       .min = 0,
       .max = 0.1,
       .above_min = true,
       .meaning = "Added to the mean square in RMSNorm, to the variance in LayerNorm.",
       .shared = true},
      {.section = "model",
       .name = "token_types",
       .kind = whole_number,
       .field = field(model, config, &ModelConfig::token_types),
       .min = 1,
       .max = 65536,
       .unit = "types",
       .meaning = "Types of tokens that a bert has embeddings of. All text is of the first.",
       .absent = "2 of a bert, else none",
       .shared = true},
      {.section = "model",
       .name = "dropout",
       .kind = number,
       .field = field(model, config, &ModelConfig::dropout),
       .min = 0,
       .max = 0.9,
       .meaning = "Of a bert: the share of elements that are dropped, while it trains, of the "
                  "embeddings and of what each part adds. 0.1 is common."},
      {.section = "model",
       .name = "attention_dropout",
       .kind = number,
       .field = field(model, config, &ModelConfig::attention_dropout),
       .min = 0,
       .max = 0.9,
       .meaning = "Of a bert: the share of the weights of attention that are dropped, while it "
                  "trains. 0.1 is common."},
      {.section = "model",
       .name = "seed",
       .kind = whole_number,
       .field = field(model, &ModelOptions::seed),
       .min = 0,
       .max = kSeedMax,
       .meaning = "Of the initial parameters. A run begins with those of its first voter (the "
                  "lowest id), and sites that differ take them."},
  };
}

std::vector<SiteKey> expert_keys() {
  using enum ValueKind;
  using runtime::RouterOptions;
  constexpr auto experts = &SiteFile::experts;

  return {
      {.section = "experts",
       .name = "capacity",
       .kind = number,
       .field = field(experts, &RouterOptions::capacity),
       .min = 0,
       .max = 1024,
       .meaning = "An expert takes of each sequence at most so many times an even share of its "
                  "tokens, the first ones, and drops the others: 1.25 is common. 0 drops none, at "
                  "the price of time that varies."},
      {.section = "experts",
       .name = "balance",
       .kind = number,
       .field = field(experts, &RouterOptions::balance),
       .min = 0,
       .max = 100,
       .meaning = "Factor of the auxiliary loss that keeps experts equally busy (Switch "
                  "Transformers), a mean over layers."},
      {.section = "experts",
       .name = "balance_scope",
       .kind = choice,
       .field = choice_field(experts, &RouterOptions::scope),
       .choices = {"sequence", "micro_batch"},
       .meaning = "Over what balance is measured: each sequence by itself, so that the loss does "
                  "not depend on micro-batches and ranks, or a micro-batch and all layers as a "
                  "whole, as transformers does."},
      {.section = "experts",
       .name = "z",
       .kind = number,
       .field = field(experts, &RouterOptions::z),
       .min = 0,
       .max = 100,
       .meaning = "Factor of the loss that keeps the routers' logits small (ST-MoE), a mean over "
                  "layers; 0.001 is common."},
  };
}

std::vector<SiteKey> lora_keys() {
  using enum ValueKind;
  constexpr auto lora = &SiteFile::lora;

  return {
      {.section = "lora",
       .name = "rank",
       .kind = whole_number,
       .field = field(lora, &LoraOptions::rank),
       .min = 1,
       .max = kernels::kLowRankMax,
       .meaning = "Of the adapters. Needs model.from, the model that they adapt.",
       .absent = "there are no adapters: the model itself trains",
       .shared = true},
      {.section = "lora",
       .name = "alpha",
       .kind = number,
       .field = field(lora, &LoraOptions::alpha),
       .min = 0,
       .max = 1e6,
       .above_min = true,
       .meaning = "What the adapters add is scaled by alpha / rank.",
       .absent = "twice the rank",
       .shared = true},
      {.section = "lora",
       .name = "targets",
       .kind = texts,
       .field = field(lora, &LoraOptions::targets),
       .meaning =
           "The products that have adapters: names of modules (`q_proj`), or patterns of whole "
           "names with `*` and `?` (`model.layers.1?.mlp.*`); `all-linear`: all but the head.",
       .shared = true},
      {.section = "lora",
       .name = "from",
       .kind = path,
       .field = field(lora, &LoraOptions::from),
       .meaning = "A directory of PEFT's (adapter_config.json, adapter_model.safetensors) to start "
                  "from, with the same rank, alpha and targets.",
       .absent = "new adapters, which add nothing at first"},
  };
}

}  // namespace isthmus::launcher

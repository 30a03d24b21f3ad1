// The C++ half of hf_test.py: `hf_logits make CASE FOLDER` writes a checkpoint of a model with
// random parameters; `hf_logits scores FOLDER` reads tokens (one line of numbers) from standard
// input and prints the scores of the next token after each, a line per token; `hf_logits greedy
// FOLDER COUNT` reads texts of tokens (a line each) and prints the COUNT likeliest ones after each.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "base/random.h"
#include "runtime/checkpoint.h"
#include "runtime/model_directory.h"

namespace {

using namespace isthmus;
using namespace isthmus::runtime;

int fail(const Error& error) {
  std::fprintf(stderr, "%s\n", error.text().c_str());
  return 1;
}

// Shapes that differ in everything a reader could get wrong.
ModelConfig config_of(const std::string& name) {
  ModelConfig config{.layers = 2,
                     .hidden = 48,
                     .heads = 6,
                     .kv_heads = 2,
                     .ffn_width = 80,
                     .vocabulary = 260,
                     .sequence_max = 128};
  if (name == "untied") {
    config.tied = false;
    config.vocabulary = 300;
    config.rope_theta = 500000.0;
    config.norm_eps = 1e-3;
  }
  if (name == "wide_heads") {
    config.head_dim = 16;
    config.kv_heads = 6;
    config.vocabulary = 256;
    config.layers = 3;
  }
  if (name == "llama3")
    config.rope_scaling = {
        .kind = RopeScaling::Kind::llama3, .factor = 8, .original_positions = 16};
  if (name == "linear") config.rope_scaling = {.kind = RopeScaling::Kind::linear, .factor = 2.5};
  if (name.ends_with("yarn"))
    config.rope_scaling = {.kind = RopeScaling::Kind::yarn, .factor = 8, .original_positions = 16};
  if (name.starts_with("qwen3")) {
    config.family = "qwen3";
    config.hidden = 44;
    config.head_dim = 16;
    config.tied = name == "qwen3";
    config.rope_theta = 1e6;
  }
  if (name == "bert") {
    config.family = name;
    config.kv_heads = config.heads;
    config.norm_eps = 1e-7;
    config.token_types = 3;
    config.dropout = 0.1;
    config.attention_dropout = 0.2;
  }
  if (name == "mixtral" || name == "qwen3_moe" || name == "qwen2_moe") {
    config.family = name;
    config.experts = 7;
    config.experts_per_token = 3;
  }
  if (name == "qwen2_moe") {
    config.expert_width = 24;
    config.shared_expert_width = 52;
    config.tied = false;
  }
  if (name == "qwen3_moe") {
    config.layers = 3;
    config.expert_width = 36;
    config.normalise_top_k = false;
    config.dense_layers = {1};
  }
  return config;
}

int make(const std::string& name, const std::string& folder) {
  const auto disk = make_system_disk();
  ThreadPool pool({-1});
  auto model = Model::create(config_of(name), {.micro_batch = 1, .sequence = 16}, pool);
  if (!model) return fail(model.error());
  (*model)->initialise(1);
  Random random(2);
  for (auto& x : (*model)->parameters()) x = x * 4 + 0.1F * static_cast<float>(random.normal());
  (*model)->parameters_changed();
  const auto written = write_checkpoint(*disk, folder, **model, {.inner_step = 1}, 1);
  if (!written) return fail(written.error());
  std::printf("%s\n", written->c_str());
  return 0;
}

// A checkpoint of random adapters beside the model in `base`.
int adapt(const std::string& base, const std::string& folder) {
  const auto disk = make_system_disk();
  ThreadPool pool({-1});
  const auto config = read_model_config(*disk, base);
  if (!config) return fail(config.error());
  const bool is_bert = config->family == "bert";
  using Targets = std::vector<std::string>;
  const FineTuning tuning{
      .frozen = {},
      .lora = {.rank = 5,
               .alpha = 7.5,
               .targets = is_bert ? Targets{"query", "*.1.attention.self.value", "*.output.dense"}
                                  : Targets{"q_proj", "*.1.self_attn.v_proj", "*.mlp.*"}},
      .base = base};
  auto model = open_model(*disk, base, {.micro_batch = 1, .sequence = 16}, pool, tuning);
  if (!model) return fail(model.error());
  Random random(3);
  for (std::size_t i = 0; i < (*model)->tensors().size(); ++i)
    if ((*model)->tensors()[i].trains)
      for (auto& x : (*model)->parameters(i)) x = 0.3F * static_cast<float>(random.normal());
  const auto written = write_checkpoint(*disk, folder, **model, {.inner_step = 1}, 1);
  if (!written) return fail(written.error());
  std::printf("%s\n", written->c_str());
  return 0;
}

int print_scores(const std::string& folder) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t token = 0; std::cin >> token;) tokens.push_back(token);
  const auto disk = make_system_disk();
  ThreadPool pool({-1});
  const BatchShape shape{.micro_batch = 1, .sequence = static_cast<std::int64_t>(tokens.size())};
  const auto model = open_model(*disk, folder, shape, pool);
  if (!model) return fail(model.error());
  const auto vocabulary = static_cast<std::size_t>((*model)->config().vocabulary);
  std::vector<float> scores(tokens.size() * vocabulary);
  (*model)->logits(tokens, scores);
  for (std::size_t i = 0; i < scores.size(); ++i)
    std::printf("%.9g%c", static_cast<double>(scores[i]),
                i % vocabulary + 1 == vocabulary ? '\n' : ' ');
  return 0;
}

int print_greedy(const std::string& folder, std::int64_t count) {
  std::vector<std::vector<std::int32_t>> texts;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    auto& tokens = texts.emplace_back();
    for (std::int32_t token = 0; words >> token;) tokens.push_back(token);
  }
  const auto disk = make_system_disk();
  ThreadPool pool({-1});
  const auto model = open_model(*disk, folder, {.micro_batch = 1, .sequence = 16}, pool);
  if (!model) return fail(model.error());
  const auto decoding =
      (*model)->decoding(static_cast<std::int64_t>(texts.size()), (*model)->config().sequence_max);
  if (!decoding) return fail(decoding.error());
  std::vector<std::int32_t> last;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    last.push_back(texts[i].back());
    texts[i].pop_back();
    (*decoding)->read(i, texts[i]);
    texts[i].clear();
  }
  const auto vocabulary = static_cast<std::size_t>((*model)->config().vocabulary);
  for (std::int64_t at = 0; at < count; ++at) {
    const auto scores = (*decoding)->next(last);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const auto row = scores.subspan(i * vocabulary, vocabulary);
      last[i] = static_cast<std::int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
      texts[i].push_back(last[i]);
    }
  }
  for (const auto& text : texts) {
    for (const auto token : text) std::printf("%d ", token);
    std::printf("\n");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "make" && argc == 4) return make(argv[2], argv[3]);
  if (command == "adapt" && argc == 4) return adapt(argv[2], argv[3]);
  if (command == "scores" && argc == 3) return print_scores(argv[2]);
  if (command == "greedy" && argc == 4) return print_greedy(argv[2], std::stol(argv[3]));
  return 2;
}

#include "runtime/model_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/routing.h"
#include "runtime/family.h"

namespace isthmus::runtime {
namespace {

Result<void> in_range(std::string_view name, std::int64_t value, std::int64_t max) {
  if (value >= 1 && value <= max) return {};
  return Error{ErrorCode::invalid_argument,
               fmt::format("{} is {}, but must be from 1 to {}", name, value, max)};
}

Result<void> check_experts(const ModelConfig& config, const Family& family) {
  const auto invalid = [](std::string what) {
    return Error{ErrorCode::invalid_argument, std::move(what)};
  };
  if (!family.has_experts) {
    if (config.experts == 0 && config.experts_per_token == 0 && config.expert_width == 0 &&
        config.shared_expert_width == 0 && config.dense_layers.empty())
      return {};
    return invalid(fmt::format(
        "experts, and what is said of them, must be left out: a {} has none, but {} has",
        family.name, fmt::join(family_names_with_experts(), " or ")));
  }
  ISTHMUS_CHECK(in_range("experts", config.experts, kernels::kExpertsMax));
  ISTHMUS_CHECK(in_range("experts_per_token", config.experts_per_token, config.experts));
  if (config.expert_width != 0)
    ISTHMUS_CHECK(in_range("expert_width", config.expert_width, 1 << 20));
  if (config.experts * config.expert_elements() * config.hidden > std::int64_t{1} << 40)
    return invalid("experts of this size are too many for one layer");
  if (config.expert_width != 0 && !family.experts_have_width)
    return invalid(fmt::format(
        "expert_width must be left out: the experts of a {} are as wide as ffn says", family.name));
  if (family.has_shared_expert)
    ISTHMUS_CHECK(in_range("shared_expert_width", config.shared_expert_width, 1 << 20));
  else if (config.shared_expert_width != 0)
    return invalid(fmt::format(
        "shared_expert_width must be left out: a {} has no expert that is shared", family.name));
  if (!config.normalise_top_k && !family.may_leave_weights)
    return invalid(fmt::format(
        "normalise_top_k must be true: a {} divides the weights of a token's experts by their sum",
        family.name));
  if (!config.dense_layers.empty() && !family.may_have_dense_layers)
    return invalid(
        fmt::format("dense_layers must be left out: each layer of a {} has experts", family.name));
  for (std::size_t i = 0; i < config.dense_layers.size(); ++i) {
    const auto layer = config.dense_layers[i];
    if (layer < 0 || layer >= config.layers || (i > 0 && layer <= config.dense_layers[i - 1]))
      return invalid(fmt::format("dense_layers names layer {}; it must be ascending, from 0 to {}",
                                 layer, config.layers - 1));
  }
  if (config.expert_layers() == 0)
    return invalid("dense_layers names all layers: none is left to have experts");
  return {};
}

// A probability of dropping.
Result<void> check_dropout(std::string_view name, double value) {
  if (value >= 0 && static_cast<float>(value) < 1) return {};  // which is what is computed with
  return Error{ErrorCode::invalid_argument,
               fmt::format("{} is {}, but must be from 0 to below 1", name, value)};
}

// What encoders have and decoders have not, and the other way round.
Result<void> check_structure(const ModelConfig& config, const Family& family) {
  const auto left_out = [&](std::string_view name, bool is) -> Result<void> {
    if (is) return {};
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{} must be left out: a {} has none", name, family.name)};
  };
  const ModelConfig usual;
  if (family.objective == Objective::next_token) {
    ISTHMUS_CHECK(left_out("token_types", config.token_types == 0));
    ISTHMUS_CHECK(left_out("dropout", config.dropout == 0));
    return left_out("attention_dropout", config.attention_dropout == 0);
  }
  ISTHMUS_CHECK(in_range("token_types", config.token_types, 1 << 16));
  ISTHMUS_CHECK(check_dropout("dropout", config.dropout));
  ISTHMUS_CHECK(check_dropout("attention_dropout", config.attention_dropout));
  ISTHMUS_CHECK(left_out("rope_theta", config.rope_theta == usual.rope_theta));
  ISTHMUS_CHECK(left_out("rope_scaling", config.rope_scaling == usual.rope_scaling));
  ISTHMUS_CHECK(left_out("head_dim", config.head_dim == 0));
  if (config.kv_heads != config.heads)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("kv_heads is {}, but a {} has as many as heads, {}", config.kv_heads,
                             family.name, config.heads)};
  if (!config.tied)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("tied must be true: the head of a {} is its embedding", family.name)};
  return {};
}

}  // namespace

bool ModelConfig::has_experts(std::int64_t layer) const {
  return experts > 0 && !std::ranges::binary_search(dense_layers, layer);
}

std::int64_t ModelConfig::expert_layers() const {
  return experts > 0 ? layers - std::ssize(dense_layers) : 0;
}

Result<void> check(const ModelConfig& config) {
  const auto* family = find_family(config.family);
  if (family == nullptr)
    return Error{ErrorCode::unsupported,
                 fmt::format("model family \"{}\" is not known; there are {}", config.family,
                             fmt::join(family_names(), ", "))};
  ISTHMUS_CHECK(in_range("layers", config.layers, 1024));
  ISTHMUS_CHECK(in_range("hidden", config.hidden, 1 << 16));
  ISTHMUS_CHECK(in_range("heads", config.heads, 1024));
  ISTHMUS_CHECK(in_range("kv_heads", config.kv_heads, config.heads));
  ISTHMUS_CHECK(in_range("ffn_width", config.ffn_width, 1 << 20));
  ISTHMUS_CHECK(in_range("vocabulary", config.vocabulary, 1 << 22));
  ISTHMUS_CHECK(in_range("sequence_max", config.sequence_max, 1 << 24));
  if (config.heads % config.kv_heads != 0)
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("heads is {}, not a multiple of kv_heads, {}", config.heads, config.kv_heads)};
  // transformers asks for it in a Llama, even beside head_dim.
  if (config.hidden % config.heads != 0 && (family->heads_divide_hidden || config.head_dim == 0))
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("hidden is {}, not a multiple of heads, {}", config.hidden, config.heads)};
  ISTHMUS_CHECK(check_experts(config, *family));
  if (config.head_dim != 0) ISTHMUS_CHECK(in_range("head_dim", config.head_dim, 1024));
  ISTHMUS_CHECK(check_structure(config, *family));
  if (config.head_elements() % 2 != 0 && family->objective == Objective::next_token)
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("{} is {}, but must be even, since rotary embedding turns pairs",
                    config.head_dim != 0 ? "head_dim" : "hidden / heads", config.head_elements())};
  if (!(config.rope_theta > 1 && config.rope_theta < 1e12))
    return Error{ErrorCode::invalid_argument,
                 fmt::format("rope_theta is {}, but must be above 1", config.rope_theta)};
  ISTHMUS_CHECK(check(config.rope_scaling));
  if (!(config.norm_eps > 0 && config.norm_eps < 1))
    return Error{ErrorCode::invalid_argument,
                 fmt::format("norm_eps is {}, but must be between 0 and 1", config.norm_eps)};
  return {};
}

std::int64_t parameter_count(const ModelConfig& config) {
  const auto program = build_program(config, {.micro_batch = 1, .sequence = 1}, Head::loss);
  std::int64_t count = 0;
  for (const auto& parameter : program.parameters)
    count += program.value(parameter.master).shape.elements();
  return count;
}

std::string_view to_string(Objective objective) {
  return objective == Objective::next_token ? "next_token" : "masked_tokens";
}

std::string_view to_string(Precision precision) {
  return precision == Precision::f32 ? "f32" : "bf16";
}

std::string_view to_string(Recompute recompute) {
  return recompute == Recompute::off ? "off" : "all";
}

std::string_view to_string(Documents documents) {
  return documents == Documents::joined ? "joined" : "apart";
}

std::string_view to_string(BalanceScope scope) {
  return scope == BalanceScope::sequence ? "sequence" : "micro_batch";
}

}  // namespace isthmus::runtime

#include "runtime/model_config.h"

#include <fmt/format.h>

#include "runtime/family.h"

namespace isthmus::runtime {
namespace {

Result<void> in_range(std::string_view name, std::int64_t value, std::int64_t max) {
  if (value >= 1 && value <= max) return {};
  return Error{ErrorCode::invalid_argument,
               fmt::format("{} is {}, but must be from 1 to {}", name, value, max)};
}

}  // namespace

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
  if (config.head_dim != 0) ISTHMUS_CHECK(in_range("head_dim", config.head_dim, 1024));
  if (config.head_elements() % 2 != 0)
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

std::string_view to_string(Precision precision) {
  return precision == Precision::f32 ? "f32" : "bf16";
}

std::string_view to_string(Recompute recompute) {
  return recompute == Recompute::off ? "off" : "all";
}

std::string_view to_string(Documents documents) {
  return documents == Documents::joined ? "joined" : "apart";
}

}  // namespace isthmus::runtime

#include "runtime/fine_tuning.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "base/assert.h"
#include "kernels/low_rank.h"

namespace isthmus::runtime {
namespace {

constexpr std::string_view kWeight = ".weight";

bool is_target(const LowRankOptions& lora, std::string_view module) {
  const auto last = module.substr(module.rfind('.') + 1);
  return std::ranges::any_of(lora.targets, [&](const std::string& pattern) {
    return pattern == kAllProducts ||
           fits_pattern(pattern, pattern.find('.') == std::string::npos ? last : module);
  });
}

bool is_frozen(const FineTuning& tuning, std::string_view tensor) {
  return std::ranges::any_of(
      tuning.frozen, [&](const std::string& pattern) { return fits_pattern(pattern, tensor); });
}

// A router decides, it does not compute: PEFT adapts none either.
bool is_router(std::string_view module) { return module.ends_with(".gate"); }

// The parameter that a value is, or the copy of.
std::size_t parameter_of(const Program& program, ValueId id) {
  return static_cast<std::size_t>(program.value(id).parameter);
}

class Adapters {
 public:
  Adapters(Program forward, const LowRankOptions& lora) : p_(std::move(forward)), lora_(lora) {}

  Program add() {
    std::vector<ValueId> renamed(p_.values.size());
    for (std::size_t v = 0; v < renamed.size(); ++v) renamed[v] = static_cast<ValueId>(v);
    auto blocks = p_.blocks;
    const auto forward = std::exchange(p_.ops, {});
    for (std::size_t at = 0; at < forward.size(); ++at) {
      for (std::size_t b = 0; b < blocks.size(); ++b) {
        if (blocks[b].first == at) p_.blocks[b].first = p_.ops.size();
        if (blocks[b].end == at) p_.blocks[b].end = p_.ops.size();
      }
      auto op = forward[at];
      for (auto& id : op.inputs)
        if (id != kNoValue) id = renamed[static_cast<std::size_t>(id)];
      p_.ops.push_back(op);
      if (op.kind == OpKind::linear && !op.attributes.of_head) {
        const auto y = static_cast<std::size_t>(op.outputs[0]);
        renamed[y] = adapt(op);
      }
    }
    for (std::size_t b = 0; b < blocks.size(); ++b)
      if (blocks[b].end == forward.size()) p_.blocks[b].end = p_.ops.size();
    if (p_.logits != kNoValue) p_.logits = renamed[static_cast<std::size_t>(p_.logits)];
    return std::move(p_);
  }

 private:
  // What comes out of a product with the adapters of its parts: of q, k and v each has its own.
  ValueId adapt(const Op& linear) {
    const auto x = linear.inputs[0];
    auto y = linear.outputs[0];
    // Adding parameters moves them.
    const auto canonical = p_.parameters[parameter_of(p_, linear.inputs[1])].canonical;
    const auto operand = p_.value(linear.inputs[1]).dtype;
    const auto in = p_.value(linear.inputs[1]).shape[1];
    const auto rows = p_.value(x).shape[0];
    for (const auto& part : canonical) {
      const auto module = module_of(part.name);
      if (is_router(module) || !is_target(lora_, module)) continue;
      const auto a = parameter(std::string(module) + std::string(kLoraA), {lora_.rank, in}, operand,
                               Initial::uniform);
      const auto b = parameter(std::string(module) + std::string(kLoraB), {part.rows, lora_.rank},
                               operand, Initial::zeros);
      const auto t = activation("low rank", {rows, lora_.rank}, operand);
      append(OpKind::linear, {x, a}, t);
      const auto sum = activation("adapted", p_.value(y).shape, p_.value(y).dtype);
      append(OpKind::low_rank, {t, b, y}, sum);
      p_.ops.back().attributes.first_column = part.first_row;
      p_.ops.back().attributes.scale = lora_.scale();
      y = sum;
    }
    return y;
  }

  // Returns what products read of it.
  ValueId parameter(std::string name, Shape shape, DType operand, Initial initial) {
    const auto index = p_.add_parameter({{std::move(name), 0, shape[0]}}, shape, operand, initial);
    return p_.parameters[index].operand;
  }
  ValueId activation(std::string_view name, Shape shape, DType dtype) {
    return p_.add(fmt::format("{}.{}", name, p_.ops.size()), shape, dtype, ValueKind::activation);
  }
  void append(OpKind kind, std::vector<ValueId> inputs, ValueId output) {
    Op op;
    op.kind = kind;
    op.inputs = std::move(inputs);
    op.outputs = {output};
    p_.ops.push_back(std::move(op));
  }

  Program p_;
  const LowRankOptions& lora_;
};

Program smallest(const ModelConfig& config) {
  return build_program(config, {.micro_batch = 1, .sequence = 1}, Head::loss);
}

std::vector<std::string> product_modules(const Program& program) {
  std::vector<std::string> modules;
  for (const auto& op : program.ops)
    if (op.kind == OpKind::linear)
      for (const auto& part : program.parameters[parameter_of(program, op.inputs[1])].canonical)
        if (const auto module = module_of(part.name); !is_router(module))
          modules.emplace_back(module);
  return modules;
}

Error invalid(std::string what) { return Error{ErrorCode::invalid_argument, std::move(what)}; }

Result<void> check_frozen(const FineTuning& tuning, const Program& program) {
  for (const auto& pattern : tuning.frozen) {
    const bool fits_any = std::ranges::any_of(program.parameters, [&](const Parameter& p) {
      return std::ranges::any_of(
          p.canonical, [&](const auto& part) { return fits_pattern(pattern, part.name); });
    });
    if (!fits_any)
      return invalid(
          fmt::format("no tensor of the model fits the frozen \"{}\"; they are named as "
                      "in a checkpoint, such as {}",
                      pattern, program.parameters.front().canonical.front().name));
  }
  bool any_trains = false;
  for (const auto& parameter : program.parameters) {
    const auto frozen = std::ranges::count_if(
        parameter.canonical, [&](const auto& part) { return is_frozen(tuning, part.name); });
    any_trains |= frozen == 0;
    if (frozen == 0 || frozen == std::ssize(parameter.canonical)) continue;
    std::vector<std::string_view> names;
    for (const auto& part : parameter.canonical) names.push_back(part.name);
    constexpr std::size_t kNamesMax = 6;  // there may be those of a thousand experts
    return invalid(fmt::format(
        "{}{} are one matrix here: freeze all of them or none",
        fmt::join(std::span(names).first(std::min(names.size(), kNamesMax)), ", "),
        names.size() <= kNamesMax ? "" : fmt::format(" and {} more", names.size() - kNamesMax)));
  }
  if (!any_trains) return invalid("all tensors of the model are frozen: nothing is left to train");
  return {};
}

Result<void> check_lora(const LowRankOptions& lora, const Program& program) {
  if (lora.rank < 1 || lora.rank > kernels::kLowRankMax)
    return invalid(fmt::format("the rank of the adapters is {}, but must be from 1 to {}",
                               lora.rank, kernels::kLowRankMax));
  if (!(lora.alpha > 0) || !std::isfinite(lora.alpha))
    return invalid(
        fmt::format("the alpha of the adapters is {}, but must be positive; twice the "
                    "rank is common",
                    lora.alpha));
  if (lora.targets.empty())
    return invalid("the adapters have no target: name modules, such as \"q_proj\" and \"v_proj\"");
  const auto modules = product_modules(program);
  for (const auto& target : lora.targets) {
    const LowRankOptions alone{.rank = lora.rank, .alpha = lora.alpha, .targets = {target}};
    if (std::ranges::none_of(modules, [&](const auto& m) { return is_target(alone, m); }))
      return invalid(
          fmt::format("no product of the model fits the target \"{}\"; there are "
                      "such as {}",
                      target, modules.front()));
  }
  return {};
}

}  // namespace

bool fits_pattern(std::string_view pattern, std::string_view name) {
  return ::fnmatch(std::string(pattern).c_str(), std::string(name).c_str(), FNM_NOESCAPE) == 0;
}

std::string_view module_of(std::string_view tensor) {
  if (!tensor.ends_with(kWeight)) return "";
  tensor.remove_suffix(kWeight.size());
  return tensor;
}

std::vector<std::string> adapted_modules(const FineTuning& tuning, const ModelConfig& config) {
  auto modules = product_modules(smallest(config));
  std::erase_if(modules, [&](const auto& m) { return !is_target(tuning.lora, m); });
  return modules;
}

Result<void> check(const FineTuning& tuning, const ModelConfig& config) {
  if (tuning.all_trains()) return {};
  const auto program = smallest(config);
  if (tuning.lora.rank == 0) return check_frozen(tuning, program);
  if (!tuning.frozen.empty())
    return invalid("with adapters all of the model is frozen: name no tensors besides");
  return check_lora(tuning.lora, program);
}

std::int64_t trained_parameter_count(const ModelConfig& config, const FineTuning& tuning) {
  std::int64_t count = 0;
  const auto program = with_fine_tuning(smallest(config), tuning);
  for (const auto& parameter : program.parameters)
    if (parameter.trains) count += program.value(parameter.master).shape.elements();
  return count;
}

Program with_fine_tuning(Program forward, const FineTuning& tuning) {
  for (auto& parameter : forward.parameters)
    parameter.trains =
        tuning.lora.rank == 0 && !is_frozen(tuning, parameter.canonical.front().name);
  if (tuning.lora.rank == 0) return forward;
  return Adapters(std::move(forward), tuning.lora).add();
}

Program build_program(const ModelConfig& config, const FineTuning& tuning, const BatchShape& shape,
                      Head head) {
  return with_fine_tuning(build_program(config, shape, head), tuning);
}

}  // namespace isthmus::runtime

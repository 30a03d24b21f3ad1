// FineTuning: what of a model trains, where not all of it does. Either some parameters are frozen,
// by the patterns of their names; or all of them are, and low-rank adapters beside the products
// that are named train instead (LoRA, Hu et al. 2021):
//
//            ┌── W (frozen) ──────────────┐
//   x ───────┤                            + ──▶ y = W x + (alpha / rank) · B A x
//            └── A {rank, in} ─ B {out, rank}
//
// What is frozen has no gradient, no moments, and is not exchanged between sites.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "runtime/family.h"
#include "runtime/model_config.h"
#include "runtime/program.h"

namespace isthmus::runtime {

struct LowRankOptions {
  std::int64_t rank = 0;  // 0: no adapters
  double alpha = 0;
  // Patterns of modules: "q_proj" is any module of that name, "model.layers.1?.mlp.*" are those
  // whose whole name it fits; "all-linear", as in PEFT, are all but the head.
  std::vector<std::string> targets = {};

  double scale() const { return alpha / static_cast<double>(rank); }
  bool operator==(const LowRankOptions&) const = default;
};

struct FineTuning {
  std::vector<std::string> frozen = {};  // patterns of tensors' names, as in a checkpoint
  LowRankOptions lora = {};
  std::string base =
      {};  // with adapters: the Hugging Face directory of the rest; "": none is named

  bool all_trains() const { return frozen.empty() && lora.rank == 0; }
  bool operator==(const FineTuning&) const = default;
};

inline constexpr std::string_view kAllProducts = "all-linear";

// `*` is any text, `?` a character, `[ab]` one of these.
bool fits_pattern(std::string_view pattern, std::string_view name);

// Errors: invalid_argument: a pattern that no tensor or product fits, one that fits only a part of
// what is one matrix here (q_proj, k_proj and v_proj; gate_proj and up_proj), nothing that trains,
// a rank that is none, both frozen patterns and adapters. Of a config that checks.
Result<void> check(const FineTuning& tuning, const ModelConfig& config);

// Of those that train; of a tuning that checks.
std::int64_t trained_parameter_count(const ModelConfig& config, const FineTuning& tuning);

// A pass, list → list, before with_backward(): marks what is frozen and adds the adapters, whose
// tensors are MODULE.lora_A.weight and MODULE.lora_B.weight. `tuning` checks.
Program with_fine_tuning(Program forward, const FineTuning& tuning);

// The family's forward list with it.
Program build_program(const ModelConfig& config, const FineTuning& tuning, const BatchShape& shape,
                      Head head);

// "model.layers.0.self_attn.q_proj" of its weight; "" of what is no weight.
std::string_view module_of(std::string_view tensor);
// Modules that have adapters, in list order.
std::vector<std::string> adapted_modules(const FineTuning& tuning, const ModelConfig& config);

inline constexpr std::string_view kLoraA = ".lora_A.weight";
inline constexpr std::string_view kLoraB = ".lora_B.weight";

}  // namespace isthmus::runtime

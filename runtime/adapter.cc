#include "runtime/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/assert.h"
#include "base/byte_stream.h"
#include "runtime/shallow_json.h"
#include "runtime/trainer_file.h"

namespace isthmus::runtime {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::uint64_t kAdapterConfigBytesMax = std::uint64_t{1} << 20;
constexpr std::string_view kPrefix = "base_model.model.";  // PEFT's wrapper around the base

// What PEFT writes besides, and what changes nothing of what an adapter computes once it is made.
constexpr std::string_view kOtherFields[] = {
    "task_type",    "auto_mapping",  "peft_version",    "revision",         "inference_mode",
    "lora_dropout", "megatron_core", "megatron_config", "qalora_group_size"};

Error adapter_fault(std::string_view key, std::string_view what) {
  return {ErrorCode::corrupt, fmt::format("adapter_config.json: {} {}", key, what)};
}

bool says_nothing(const OrderedJson& value) {
  return value.is_null() || value == false || value == "" || value == "none" ||
         ((value.is_object() || value.is_array()) && value.empty());
}

// Initialisations that leave the base as it is.
bool is_plain_start(const OrderedJson& value) { return value.is_boolean() || value == "gaussian"; }

Result<void> check_others(const OrderedJson& json) {
  constexpr std::string_view kRead[] = {"peft_type", "r", "lora_alpha", "target_modules",
                                        "base_model_name_or_path"};
  for (const auto& [key, value] : json.items()) {
    if (std::ranges::find(kRead, key) != std::end(kRead) ||
        std::ranges::find(kOtherFields, key) != std::end(kOtherFields) || says_nothing(value) ||
        (key == "init_lora_weights" && is_plain_start(value)))
      continue;
    return Error{ErrorCode::unsupported,
                 fmt::format("adapter_config.json: {} is {}, which this version does not know", key,
                             value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace))};
  }
  return {};
}

Result<std::vector<std::string>> targets_of(const OrderedJson& json) {
  if (json == kAllProducts) return std::vector<std::string>{std::string(kAllProducts)};
  if (!json.is_array() || json.empty())
    return adapter_fault("target_modules", "is no list of names of modules, nor \"all-linear\"");
  std::vector<std::string> targets;
  for (const auto& target : json) {
    if (!target.is_string())
      return adapter_fault("target_modules", "is no list of names of modules");
    targets.push_back(target.get<std::string>());
  }
  return targets;
}

std::string stored_name(std::string_view tensor) {
  return std::string(kPrefix) + std::string(tensor);
}

}  // namespace

Result<AdapterDescription> from_adapter_json(std::string_view text) {
  const auto json = parse_shallow_json<OrderedJson>(text);
  if (json.is_discarded() || !json.is_object())
    return Error{ErrorCode::corrupt, "adapter_config.json is cut short, or no JSON object"};
  if (!json.contains("peft_type") || json["peft_type"] != "LORA")
    return Error{ErrorCode::unsupported,
                 "adapter_config.json: peft_type is not LORA: there are no other adapters here"};
  ISTHMUS_CHECK(check_others(json));
  AdapterDescription description;
  if (!json.contains("r") || !json["r"].is_number_unsigned() ||
      json["r"].get<std::uint64_t>() > 1'000'000)
    return adapter_fault("r", "is no positive whole number");
  description.lora.rank = json["r"].get<std::int64_t>();
  if (!json.contains("lora_alpha") || !json["lora_alpha"].is_number())
    return adapter_fault("lora_alpha", "is no number");
  description.lora.alpha = json["lora_alpha"].get<double>();
  if (!json.contains("target_modules")) return adapter_fault("target_modules", "is missing");
  ISTHMUS_TRY(description.lora.targets, targets_of(json["target_modules"]));
  if (json.contains("base_model_name_or_path") && json["base_model_name_or_path"].is_string())
    description.base = json["base_model_name_or_path"].get<std::string>();
  return description;
}

std::string to_adapter_json(const AdapterDescription& description,
                            std::span<const std::string> modules, Objective objective) {
  const auto& lora = description.lora;
  const bool plain = std::ranges::none_of(lora.targets, [](const auto& t) {
    return t == kAllProducts || t.find_first_of("*?[.") != std::string::npos;
  });
  auto targets = plain ? lora.targets : std::vector<std::string>(modules.begin(), modules.end());
  // A whole number as such, as PEFT has it.
  const bool whole = lora.alpha == std::floor(lora.alpha) && lora.alpha < 1e9;
  const OrderedJson json = {
      {"peft_type", "LORA"},
      // PEFT has no name for what predicts masked tokens.
      {"task_type",
       objective == Objective::next_token ? OrderedJson("CAUSAL_LM") : OrderedJson(nullptr)},
      {"base_model_name_or_path", description.base},
      {"r", lora.rank},
      {"lora_alpha",
       whole ? OrderedJson(static_cast<std::int64_t>(lora.alpha)) : OrderedJson(lora.alpha)},
      {"target_modules", std::move(targets)},
      {"lora_dropout", 0.0},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"init_lora_weights", true},
      {"inference_mode", true}};
  return json.dump(2) + "\n";
}

Result<bool> holds_adapter(const Disk& disk, const std::string& directory) {
  return disk.exists(directory + "/" + kAdapterConfigFile);
}

Result<StoredAdapter> StoredAdapter::open(Disk& disk, const std::string& directory) {
  ISTHMUS_TRY(const auto bytes,
              read_file(disk, directory + "/" + kAdapterConfigFile, kAdapterConfigBytesMax));
  auto description = from_adapter_json(text_of(bytes));
  if (!description)
    return Error{description.error().code, fmt::format("{} cannot be used", directory),
                 std::move(description).error()};
  ISTHMUS_TRY(auto reader, SafetensorsReader::open(disk, directory + "/" + kAdapterFile));
  return StoredAdapter(directory, std::move(*description), std::move(reader));
}

Result<void> StoredAdapter::check(const ModelConfig& config) const {
  const FineTuning tuning{.frozen = {}, .lora = description_.lora, .base = {}};
  if (auto fits = runtime::check(tuning, config); !fits)
    return Error{fits.error().code,
                 fmt::format("the adapter in {} is none for this model", directory_),
                 std::move(fits).error()};
  const auto layout = lay_out_parameters(
      build_program(config, tuning, {.micro_batch = 1, .sequence = 1}, Head::loss));
  const auto mismatch = [&](std::string what) {
    return Error{ErrorCode::mismatch, fmt::format("{}: {}", directory_, what)};
  };
  std::set<std::string> known;
  for (const auto& tensor : layout.tensors) {
    if (!tensor.trains) continue;
    const auto name = stored_name(tensor.name);
    const auto* stored = reader_.find(name);
    if (stored == nullptr) return mismatch(fmt::format("there is no tensor {}", name));
    if (const auto fits = check_shape(*stored, tensor.shape); !fits)
      return mismatch(fits.error().message);
    known.insert(name);
  }
  for (const auto& stored : reader_.tensors())
    if (!known.contains(stored.name))
      return mismatch(fmt::format("its adapter_config.json knows no tensor {}", stored.name));
  return {};
}

Result<void> StoredAdapter::read(const CanonicalTensor& tensor, std::span<float> out) const {
  const auto* stored = reader_.find(stored_name(tensor.name));
  ISTHMUS_ASSERT(stored != nullptr);
  return reader_.read_finite(*stored, out);
}

Result<std::vector<float>> StoredAdapter::values_of(const std::string& name) const {
  const auto* stored = reader_.find(name);
  ISTHMUS_ASSERT(stored != nullptr);
  std::vector<float> values(stored->elements);
  ISTHMUS_CHECK(reader_.read_finite(*stored, values));
  return values;
}

Result<void> StoredAdapter::merge_into(const CanonicalTensor& weight,
                                       std::span<float> values) const {
  const auto module = std::string(module_of(weight.name));
  const auto a_name = stored_name(module + std::string(kLoraA));
  if (module.empty() || reader_.find(a_name) == nullptr) return {};
  ISTHMUS_TRY(const auto a, values_of(a_name));
  ISTHMUS_TRY(const auto b, values_of(stored_name(module + std::string(kLoraB))));
  const auto rank = static_cast<std::size_t>(description_.lora.rank);
  const auto columns = a.size() / rank;
  const auto scale = static_cast<float>(description_.lora.scale());
  ISTHMUS_ASSERT(values.size() == b.size() / rank * columns);
  std::vector<float> change(columns);
  for (std::size_t row = 0; row < b.size() / rank; ++row) {
    std::ranges::fill(change, 0.0F);
    for (std::size_t r = 0; r < rank; ++r) {
      const float factor = b[row * rank + r];
      for (std::size_t c = 0; c < columns; ++c) change[c] += factor * a[r * columns + c];
    }
    for (std::size_t c = 0; c < columns; ++c) values[row * columns + c] += scale * change[c];
  }
  return {};
}

Result<SafetensorsWriter> start_adapter(Disk& disk, const std::string& directory, Model& model) {
  const auto& tuning = model.fine_tuning();
  ISTHMUS_ASSERT(tuning.lora.rank > 0);
  const AdapterDescription description{
      .lora = tuning.lora,
      .base = tuning.base.empty() ? "" : std::filesystem::absolute(tuning.base).string()};
  ISTHMUS_CHECK(
      replace_file(disk, directory + "/" + kAdapterConfigFile,
                   bytes_of(to_adapter_json(description, adapted_modules(tuning, model.config()),
                                            objective_of(model.config())))));
  std::vector<TensorToStore> tensors;
  for (std::size_t i = 0; i < model.tensors().size(); ++i)
    if (const auto& tensor = model.tensors()[i]; tensor.trains)
      tensors.push_back({stored_name(tensor.name), tensor.shape, model.parameters(i)});
  return start_safetensors(disk, directory + "/" + kAdapterFile, tensors, {{"format", "pt"}});
}

}  // namespace isthmus::runtime

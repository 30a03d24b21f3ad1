#include "launcher/site_check_model.h"

#include <fmt/format.h>

#include <string_view>

#include "launcher/site_masking.h"
#include "launcher/units.h"
#include "runtime/family.h"
#include "runtime/rate_ranges.h"

namespace isthmus::launcher {

// Of a model that checks: what its ranks share with the gateway, a contribution and a state in f32.
void check_memory(SiteText& text) {
  const auto& gateway = text.file.gateway;
  const auto needed =
      8 * runtime::trained_parameter_count(text.file.model.config, text.file.fine_tuning());
  if (text.file.alone() || gateway.memory >= needed) return;
  text.faults.add(
      text.region("gateway.memory"),
      fmt::format("gateway.memory = \"{}\" is less than the {} that ranks with this "
                  "model share with the gateway",
                  exact_bytes(gateway.memory), about_bytes(static_cast<double>(needed))));
}

// Of a model that checks: that its names are those of the patterns.
bool check_tuning(SiteText& text) {
  const auto tuning = text.file.fine_tuning();
  const auto fits = runtime::check(tuning, text.file.model.config);
  const std::string_view key = tuning.lora.rank > 0 ? "lora.targets" : "train.freeze";
  if (!fits) text.faults.add(text.region(key), fmt::format("{}: {}", key, fits.error().text()));
  if (!fits) return false;
  const auto& train = text.file.train;
  const auto rates = runtime::check(train.rates, text.file.model.config, tuning);
  if (!rates)
    text.faults.add(text.region("train.rates"),
                    fmt::format("train.rates: {}", rates.error().text()));
  return rates.has_value();
}

void check_router(SiteText& text) {
  const auto* family = runtime::find_family(text.file.model.config.family);
  if (family == nullptr || family->has_experts) return;
  for (const std::string_view key :
       {"experts.capacity", "experts.balance", "experts.balance_scope", "experts.z"})
    if (text.written(key))
      text.faults.add(
          text.region(key),
          fmt::format("{} has no effect on a {}, which has no experts", key, family->name));
}

void check_masking(SiteText& text) {
  const auto* family = runtime::find_family(text.file.model.config.family);
  if (family == nullptr) return;
  if (family->objective == runtime::Objective::masked_tokens) {
    if (text.file.train.sequence < 2)
      text.faults.add(text.region("train.sequence"),
                      "train.sequence = 1 leaves nothing to predict: the first token of a sequence "
                      "is never hidden");
    return;
  }
  for (const std::string_view key : {"masking.share", "masking.token"})
    if (text.written(key))
      text.faults.add(text.region(key),
                      fmt::format("{} has no effect on a {}, which predicts the next token and "
                                  "hides none",
                                  key, family->name));
}

void check_mask_token(SiteText& text, const runtime::Tokenizer& tokenizer) {
  const auto masking = site_masking(text.file, tokenizer, text.file.model.config);
  if (masking) return;
  const std::string_view key = text.written("masking.token")     ? "masking.token"
                               : text.written("model.tokenizer") ? "model.tokenizer"
                               : text.written("model.from")      ? "model.from"
                                                                 : "model.family";
  text.faults.add(text.region(key), fmt::format("{}: {}", key, masking.error().text()));
}

void check_context(SiteText& text) {
  const auto longest = text.file.model.config.sequence_max;
  if (text.file.train.sequence > longest)
    text.faults.add(
        text.region("train.sequence"),
        fmt::format(
            "train.sequence = {} is longer than {} = {}", text.file.train.sequence,
            text.written("model.from") ? "max_position_embeddings of model.from" : "model.context",
            longest));
}

}  // namespace isthmus::launcher

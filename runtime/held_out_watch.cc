#include "runtime/held_out_watch.h"

#include <cmath>

namespace isthmus::runtime {

std::optional<double> watch_held_out(const TrainParts& parts, const TrainOptions& options,
                                     const Progress& progress,
                                     std::span<TrainObserver* const> observers) {
  double sum = 0;
  for (const auto& text : options.held_out) {
    const auto loss =
        held_out_loss(parts.model, *parts.tokenizer, parts.disk, text.path, options.evaluation);
    if (!loss) {
      parts.log.alarm(
          "evaluation_failed", {},
          {{"text", text.name}, {"why", loss.error().text()}, {"then", "training goes on"}});
      return std::nullopt;
    }
    sum += loss->bits();
    parts.log.info("held_out_loss", {},
                   {{"inner_step", progress.inner_step},
                    {"text", text.name},
                    {loss->bits_per_byte ? "bits_per_byte" : "bits_per_token", loss->bits()},
                    {"perplexity", loss->perplexity},
                    {"objective", to_string(loss->objective)}});
    for (auto* observer : observers)
      observer->held_out({.inner_step = progress.inner_step,
                          .outer_step = progress.outer_step,
                          .text = text.name,
                          .loss = *loss});
  }
  const double mean = sum / static_cast<double>(options.held_out.size());
  return std::isfinite(mean) ? std::optional(mean) : std::nullopt;
}

}  // namespace isthmus::runtime

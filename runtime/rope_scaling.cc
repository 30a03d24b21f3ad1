#include "runtime/rope_scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace isthmus::runtime {
namespace {

Error fault(std::string_view key, double value, std::string_view rule) {
  return {ErrorCode::invalid_argument,
          fmt::format("rope scaling: {} is {}, but must be {}", key, value, rule)};
}

// Kept above `high`, divided below `low`, and a straight ramp between: the share that is kept.
double ramp(double at, double low, double high) {
  return std::clamp((at - low) / (high - low), 0.0, 1.0);
}

// The i (of theta^(-2i/d)) that turns so often over the original positions.
double index_of_turns(double turns, double theta, double head_dim, double positions) {
  return head_dim * std::log(positions / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

// The share of frequency i that is kept as it was.
double kept(std::int64_t i, double frequency, double theta, std::int64_t head_dim,
            const RopeScaling& scaling) {
  const auto positions = static_cast<double>(scaling.original_positions);
  const auto d = static_cast<double>(head_dim);
  switch (scaling.kind) {
    case RopeScaling::Kind::none:
      return 1;
    case RopeScaling::Kind::linear:
      return 0;
    case RopeScaling::Kind::llama3: {
      const double waves = positions * frequency / (2 * std::numbers::pi);
      return ramp(waves, scaling.low_frequency_factor, scaling.high_frequency_factor);
    }
    case RopeScaling::Kind::yarn: {
      double first = index_of_turns(scaling.beta_fast, theta, d, positions);
      double last = index_of_turns(scaling.beta_slow, theta, d, positions);
      if (scaling.truncate) {
        first = std::floor(first);
        last = std::ceil(last);
      }
      first = std::max(first, 0.0);
      last = std::min(last, d - 1);
      if (first == last) last += 0.001;  // no division by zero
      return 1 - ramp(static_cast<double>(i), first, last);
    }
  }
  return 1;
}

}  // namespace

std::string_view to_string(RopeScaling::Kind kind) {
  switch (kind) {
    case RopeScaling::Kind::none:
      return "none";
    case RopeScaling::Kind::linear:
      return "linear";
    case RopeScaling::Kind::llama3:
      return "llama3";
    case RopeScaling::Kind::yarn:
      return "yarn";
  }
  return "none";
}

Result<void> check(const RopeScaling& scaling) {
  if (scaling.kind == RopeScaling::Kind::none) return {};
  if (!(scaling.factor >= 1 && scaling.factor <= 1e6))
    return fault("factor", scaling.factor, "from 1 to 1000000");
  if (scaling.kind == RopeScaling::Kind::linear) return {};
  if (scaling.original_positions < 1 || scaling.original_positions > 1 << 24)
    return fault("original_max_position_embeddings",
                 static_cast<double>(scaling.original_positions), "from 1 to 16777216");
  if (scaling.kind == RopeScaling::Kind::llama3) {
    if (!(scaling.low_frequency_factor > 0))
      return fault("low_freq_factor", scaling.low_frequency_factor, "above 0");
    if (!(scaling.high_frequency_factor > scaling.low_frequency_factor &&
          scaling.high_frequency_factor < 1e6))
      return fault("high_freq_factor", scaling.high_frequency_factor, "above low_freq_factor");
    return {};
  }
  if (!(scaling.beta_slow > 0)) return fault("beta_slow", scaling.beta_slow, "above 0");
  if (!(scaling.beta_fast >= scaling.beta_slow && scaling.beta_fast < 1e6))
    return fault("beta_fast", scaling.beta_fast, "at least beta_slow");
  if (!(scaling.attention_factor >= 0 && scaling.attention_factor < 1e3))
    return fault("attention_factor", scaling.attention_factor, "from 0 to 1000");
  return {};
}

std::vector<double> rope_frequencies(double theta, std::int64_t head_dim,
                                     const RopeScaling& scaling) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < head_dim / 2; ++i) {
    const double frequency =
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    const double share = kept(i, frequency, theta, head_dim, scaling);
    frequencies.push_back(frequency * share + frequency / scaling.factor * (1 - share));
  }
  return frequencies;
}

double rope_amplitude(const RopeScaling& scaling) {
  if (scaling.kind != RopeScaling::Kind::yarn) return 1;
  if (scaling.attention_factor > 0) return scaling.attention_factor;
  return 0.1 * std::log(scaling.factor) + 1;
}

std::string describe(const RopeScaling& scaling) {
  switch (scaling.kind) {
    case RopeScaling::Kind::none:
      break;
    case RopeScaling::Kind::linear:
      return fmt::format("linear by {}", scaling.factor);
    case RopeScaling::Kind::llama3:
      return fmt::format("llama3 by {} from {} ({} to {})", scaling.factor,
                         scaling.original_positions, scaling.low_frequency_factor,
                         scaling.high_frequency_factor);
    case RopeScaling::Kind::yarn:
      return fmt::format("yarn by {} from {} ({} to {}{}) times {}", scaling.factor,
                         scaling.original_positions, scaling.beta_slow, scaling.beta_fast,
                         scaling.truncate ? "" : " exactly", rope_amplitude(scaling));
  }
  return "none";
}

}  // namespace isthmus::runtime

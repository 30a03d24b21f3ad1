#include "runtime/rate_ranges.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "runtime/family.h"

namespace isthmus::runtime {
namespace {

double factor_of(std::span<const RateFactor> rates, const std::string& tensor) {
  const auto fitting = std::ranges::find_if(
      rates, [&](const RateFactor& rate) { return fits_pattern(rate.tensors, tensor); });
  return fitting == rates.end() ? 1.0 : fitting->factor;
}

}  // namespace

std::vector<RateRange> rate_ranges(const ParameterLayout& layout,
                                   std::span<const RateFactor> rates) {
  std::vector<RateRange> ranges;
  for (const auto& tensor : layout.tensors)
    if (tensor.trains)
      ranges.push_back({.first = tensor.first,
                        .factor = factor_of(rates, tensor.name),
                        .decays = tensor.first < layout.matrix_elements});
  std::ranges::sort(ranges, {}, &RateRange::first);
  for (std::size_t i = 0; i < ranges.size(); ++i)
    ranges[i].end = i + 1 < ranges.size() ? ranges[i + 1].first : layout.trained_elements;
  std::vector<RateRange> joined;
  for (const auto& range : ranges)
    if (!joined.empty() && joined.back().factor == range.factor &&
        joined.back().decays == range.decays)
      joined.back().end = range.end;
    else
      joined.push_back(range);
  return joined;
}

Result<void> check(std::span<const RateFactor> rates, const ModelConfig& config,
                   const FineTuning& tuning) {
  if (rates.empty()) return {};
  const auto layout = lay_out_parameters(
      build_program(config, tuning, {.micro_batch = 1, .sequence = 1}, Head::loss));
  for (const auto& rate : rates) {
    if (!(rate.factor > 0) || !std::isfinite(rate.factor))
      return Error{ErrorCode::invalid_argument,
                   fmt::format("the factor of \"{}\" is {}, but must be above 0: what is not to "
                               "train at all is frozen",
                               rate.tensors, rate.factor)};
    const auto trained = std::ranges::find_if(layout.tensors, &CanonicalTensor::trains);
    if (std::ranges::none_of(layout.tensors, [&](const CanonicalTensor& tensor) {
          return tensor.trains && fits_pattern(rate.tensors, tensor.name);
        }))
      return Error{ErrorCode::invalid_argument,
                   fmt::format("no tensor that trains fits \"{}\"; they are named as in a "
                               "checkpoint, such as {}",
                               rate.tensors, trained->name)};
  }
  return {};
}

}  // namespace isthmus::runtime

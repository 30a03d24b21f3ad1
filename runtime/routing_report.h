// RoutingReport: how a model with experts has routed what it was trained on: over micro-batches,
// and then over ranks, these are sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isthmus::runtime {

struct RoutingReport {
  std::size_t experts = 0;            // of a layer
  std::vector<std::uint64_t> chosen;  // [layers with experts, experts]: choices of each
  std::uint64_t dropped = 0;          // choices beyond the capacity
  // Means over layers, each a sum over counted targets, without the factors of the options.
  double balance_loss = 0;
  double z_loss = 0;

  std::size_t layers() const { return experts == 0 ? 0 : chosen.size() / experts; }
  std::uint64_t choices() const;
  double dropped_share() const;
  // Choices of the busiest expert over an even share of its layer, in the worst layer: 1 is
  // balanced.
  double imbalance() const;

  void clear();  // allocates nothing
};

}  // namespace isthmus::runtime

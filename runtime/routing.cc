#include "runtime/routing.h"

#include <cmath>

namespace isthmus::runtime {

std::int64_t Routing::capacity() const {
  const auto share = static_cast<double>(sequence * top_k) / static_cast<double>(experts);
  return static_cast<std::int64_t>(std::ceil(options.capacity * share));
}

kernels::RoutingShape Routing::shape() const {
  return {.batch = batch(),
          .sequence = sequence,
          .experts = experts,
          .top_k = top_k,
          .capacity = capacity(),
          .normalised = normalised};
}

}  // namespace isthmus::runtime

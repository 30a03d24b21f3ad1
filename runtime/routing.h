// Routing: what a list's route op makes of the logits of a layer's experts (kernels/routing.h).
#pragma once

#include <cstdint>

#include "kernels/routing.h"
#include "runtime/model_config.h"

namespace isthmus::runtime {

struct Routing {
  std::int64_t tokens = 0;  // batch × sequence
  std::int64_t sequence = 0;
  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  bool normalised = false;
  std::int64_t layer = 0;  // of those that have experts
  std::int64_t layers = 0;
  RouterOptions options;

  std::int64_t batch() const { return tokens / sequence; }
  std::int64_t choices() const { return tokens * top_k; }
  // Tokens that an expert takes of a sequence; 0: all.
  std::int64_t capacity() const;
  kernels::RoutingShape shape() const;
};

}  // namespace isthmus::runtime

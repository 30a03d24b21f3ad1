// TrainStatus: where a training stands, for monitors.
#pragma once

#include <cstdint>

namespace isthmus::runtime {

struct TrainStatus {
  std::int64_t inner_step = 0;
  std::uint64_t outer_step = 0;
  double loss = 0;               // nats per predicted token, of the last inner step
  double tokens_per_second = 0;  // of all ranks of the site
  bool waiting = false;          // for the gateway
};

}  // namespace isthmus::runtime

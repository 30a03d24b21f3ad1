#include "inter/tested_bytes.h"

#include <algorithm>

namespace isthmus::inter {

void TestedBytes::settle(Nanoseconds now, const Count& all) {
  const bool at_rest = now >= last_ + kLost;
  for (const auto field : {&Count::sent, &Count::received}) {
    const auto moved = all.*field + lost_.*field;
    const auto least = tests_.*field + others_.*field;
    if (moved >= least)
      others_.*field = moved - tests_.*field;
    else if (at_rest)
      lost_.*field += least - moved;
  }
}

void TestedBytes::add(Nanoseconds now, const Count& message) {
  last_ = now;
  tests_.sent += message.sent;
  tests_.received += message.received;
}

void TestedBytes::goes_on(Nanoseconds now, const Count& all) {
  if (!unsettled(now)) {
    settle(now, all);
    unsettled_since_ = now;
  }
  settled_from_ = std::min(now + kSettles, unsettled_since_ + kLinkTestLongest);
}

TestedBytes::Count TestedBytes::others(Nanoseconds now, const Count& all) {
  if (!unsettled(now)) settle(now, all);
  return others_;
}

}  // namespace isthmus::inter

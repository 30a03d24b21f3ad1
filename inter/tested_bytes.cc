#include "inter/tested_bytes.h"

#include <algorithm>

namespace isthmus::inter {

void TestedBytes::settle(const Count& all) {
  const auto left = [](std::uint64_t whole, std::uint64_t part, std::uint64_t before) {
    return std::max(whole > part ? whole - part : 0, before);
  };
  others_ = {.sent = left(all.sent, tests_.sent, others_.sent),
             .received = left(all.received, tests_.received, others_.received)};
}

void TestedBytes::add(Nanoseconds now, const Count& message, const Count& all) {
  tests_.sent += message.sent;
  tests_.received += message.received;
  if (now >= settled_from_) settle(all);
  settled_from_ = now + kSettles;
}

TestedBytes::Count TestedBytes::others(Nanoseconds now, const Count& all) {
  if (now >= settled_from_) settle(all);
  return others_;
}

}  // namespace isthmus::inter

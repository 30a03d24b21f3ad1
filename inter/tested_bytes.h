// TestedBytes: which of the bytes that a wire carried to and from one peer were of link tests, so
// that they are not taken for the run's. Messages are counted when they are handed over or have
// come, the wire's bytes as they move; so while a test goes on, and a little longer, the count of
// all others stands still. No count ever falls.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace isthmus::inter {

class TestedBytes {
 public:
  struct Count {
    std::uint64_t sent = 0, received = 0;
  };
  static constexpr Nanoseconds kSettles = 5 * kSecond;  // after a test's last message

  // A message of a test, in bytes as the wire counts them, of which it has counted `all` so far.
  void add(Nanoseconds now, const Count& message, const Count& all);
  const Count& tests() const { return tests_; }
  // What is left of `all` that the wire has counted.
  Count others(Nanoseconds now, const Count& all);

 private:
  void settle(const Count& all);

  Count tests_, others_;
  Nanoseconds settled_from_ = 0;
};

}  // namespace isthmus::inter

// TestedBytes: which of the bytes that a wire carried to and from one peer were of link tests, so
// that they are not taken for the run's. Messages are counted when they are handed over or have
// come, the wire's bytes as they move; so while a test goes on, and a little longer, the count of
// all others stands still: for as long as the longest test at most, whatever the peer says. No
// count ever falls.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "inter/link_test_frames.h"

namespace isthmus::inter {

class TestedBytes {
 public:
  struct Count {
    std::uint64_t sent = 0, received = 0;
  };
  static constexpr Nanoseconds kSettles = 5 * kSecond;  // after a test's last message
  // What was handed over so long before and has not moved was lost with its connection.
  static constexpr Nanoseconds kLost = 60 * kSecond;

  // A message, in bytes as the wire counts them.
  void add(Nanoseconds now, const Count& message);
  // It was of a test that goes on; so far the wire has counted `all`.
  void goes_on(Nanoseconds now, const Count& all);
  // What comes may still be of a test that was.
  bool unsettled(Nanoseconds now) const { return now < settled_from_; }

  // As they were handed over, or came.
  const Count& tests() const { return tests_; }
  // What is left of `all` that the wire has counted.
  Count others(Nanoseconds now, const Count& all);

 private:
  void settle(Nanoseconds now, const Count& all);

  Count tests_, lost_, others_;
  Nanoseconds unsettled_since_ = 0, settled_from_ = 0;
  Nanoseconds last_ = 0;  // message
};

}  // namespace isthmus::inter

// RestartPolicy: what to do when a process that `launch` started has ended: nothing more, start it
// again after a while, or give up because starting again cannot help. One per process; no clocks
// and no processes in it.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace isthmus::launcher {

// How a process ended: with an exit code, or by a signal.
struct ProcessEnd {
  int code = 0;
  int signal = 0;  // 0: it exited

  bool done() const { return signal == 0 && code == 0; }
  std::string text() const;  // "ended with exit code 5", "ended by signal 9 (Killed)"
};

struct RestartOptions {
  Nanoseconds first_delay = kSecond / 2;  // doubles with each failure in a row
  Nanoseconds delay_max = 30 * kSecond;
  Nanoseconds delay_for_room_max = 5 * kSecond;  // on the disk
  Nanoseconds healthy = 60 * kSecond;  // after so long a life, earlier failures are forgotten
  Nanoseconds instant = 10 * kSecond;  // a shorter life is an instant failure
  int instant_failures_max = 5;        // so many in a row: give up
  int futile_failures_max = 12;        // so many without progress in between: give up
};

struct RestartDecision {
  enum class What : std::uint8_t { finished, stopped, restart, give_up } what = What::finished;
  Nanoseconds delay = 0;  // of a restart
  std::string reason;     // of giving up: for the user
};

class RestartPolicy {
 public:
  explicit RestartPolicy(RestartOptions options) : options_(options) {}

  // `progress` grows with what the process' site has achieved for good (checkpoints, outer steps):
  // a failure that comes back after the same work would otherwise be repeated for ever.
  RestartDecision on_end(const ProcessEnd& end, Nanoseconds lived, std::int64_t progress);

 private:
  Nanoseconds next_delay();

  RestartOptions options_;
  int failures_ = 0;          // in a row
  int instant_failures_ = 0;  // in a row
  int futile_failures_ = 0;   // since progress_ grew
  std::int64_t progress_ = 0;
};

}  // namespace isthmus::launcher

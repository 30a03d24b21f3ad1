// The clocks that benchmarks read, in seconds.
#pragma once

#include <ctime>

namespace isthmus::bench {

inline double seconds_of_clock(clockid_t id) {
  timespec time{};
  clock_gettime(id, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}
inline double wall_seconds() { return seconds_of_clock(CLOCK_MONOTONIC); }
// Of the CPU: of all threads, of the calling one.
inline double process_seconds() { return seconds_of_clock(CLOCK_PROCESS_CPUTIME_ID); }
inline double thread_seconds() { return seconds_of_clock(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace isthmus::bench

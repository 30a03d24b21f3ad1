// Clock: the time, as the outer step sees it. The system's, or a simulated one (inter/sim). Waiting
// is the business of inter/loop.h.
#pragma once

#include <cstdint>
#include <memory>

namespace isthmus {

// Nanoseconds; the origin is the clock's own.
using Nanoseconds = std::int64_t;
inline constexpr Nanoseconds kMicrosecond = 1'000;
inline constexpr Nanoseconds kMillisecond = 1'000'000;
inline constexpr Nanoseconds kSecond = 1'000'000'000;

inline double seconds_of(Nanoseconds ns) { return static_cast<double>(ns) * 1e-9; }

class Clock {
 public:
  virtual ~Clock() = default;
  // Never goes back; unrelated to the calendar.
  virtual Nanoseconds now() const = 0;
  // Since 1970-01-01 UTC; may jump. For people and for expiry dates, never for deadlines.
  virtual Nanoseconds unix_time() const = 0;
};

std::unique_ptr<Clock> make_system_clock();

}  // namespace isthmus

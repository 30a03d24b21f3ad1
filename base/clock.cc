#include "base/clock.h"

#include <time.h>

namespace isthmus {
namespace {

class SystemClock final : public Clock {
  static Nanoseconds read(clockid_t id) {
    timespec t{};
    clock_gettime(id, &t);
    return t.tv_sec * kSecond + t.tv_nsec;
  }
  Nanoseconds now() const override { return read(CLOCK_MONOTONIC); }
  Nanoseconds unix_time() const override { return read(CLOCK_REALTIME); }
};

}  // namespace

std::unique_ptr<Clock> make_system_clock() { return std::make_unique<SystemClock>(); }

}  // namespace isthmus

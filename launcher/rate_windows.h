// RateWindows: hours of the day with a rate limit of their own ([[gateway.windows]]). What holds
// follows from the wall clock of this moment alone, so a clock that is set, and the hour that a day
// skips or has twice, need no care: in a skipped hour no window begins, in a repeated one it holds
// twice.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace isthmus::launcher {

inline constexpr int kMinutesPerDay = 24 * 60;

// From a minute of the day up to another, past midnight when that is earlier.
struct RateWindow {
  int from = 0;                 // minutes since midnight
  int to = 0;                   // kMinutesPerDay: midnight at the day's end
  std::int64_t rate_limit = 0;  // bits per second; 0: unlimited

  bool holds(int minute) const {
    return from < to ? from <= minute && minute < to : minute >= from || minute < to;
  }
};

// "08:00", up to "24:00".
std::optional<int> parse_time_of_day(std::string_view text);
// What "8:00", "8" or "8:00:00" means by it.
std::optional<std::string> near_time_of_day(std::string_view text);
std::string time_of_day(int minute);

// Places of two that hold in the same minute.
std::optional<std::pair<std::size_t, std::size_t>> overlapping(std::span<const RateWindow> windows);

// One of them holds in each minute.
bool cover_the_day(std::span<const RateWindow> windows);

struct RateNow {
  std::int64_t rate_limit = 0;  // bits per second; 0: unlimited
  int until = 0;                // minute of the day at which it may change,
  bool tomorrow = false;        // of the next day
  std::int64_t then = 0;        // what holds from there on
};
// `otherwise`: outside all windows, of which there is one at least.
RateNow rate_at(std::span<const RateWindow> windows, std::int64_t otherwise, int minute);
// "20 Mbit/s until 18:00, then unlimited".
std::string rate_sentence(const RateNow& now);

// Of the process' time zone (TZ, else /etc/localtime), as it is at this moment.
int minute_of_day(Nanoseconds unix_time);

// Names a zone for TZ: "UTC", or a file of the system's zone database ("Europe/Berlin").
bool is_time_zone(const std::string& name);
// The one that was probably meant: "Europe/Berlin" for "Berlin" or "Europe/Berln".
std::optional<std::string> near_time_zone(std::string_view written);
// Of this process, from now on; before it starts threads.
void use_time_zone(const std::string& name);

}  // namespace isthmus::launcher

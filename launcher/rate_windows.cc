#include "launcher/rate_windows.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "launcher/nearest_name.h"
#include "launcher/units.h"

namespace isthmus::launcher {
namespace {

std::filesystem::path zone_folder() {
  const char* chosen = std::getenv("TZDIR");
  return chosen != nullptr ? chosen : "/usr/share/zoneinfo";
}

}  // namespace

std::optional<int> parse_time_of_day(std::string_view text) {
  const auto digit = [&text](std::size_t at) { return text[at] >= '0' && text[at] <= '9'; };
  if (text.size() != 5 || text[2] != ':' || !digit(0) || !digit(1) || !digit(3) || !digit(4))
    return std::nullopt;
  const int hours = 10 * (text[0] - '0') + text[1] - '0';
  const int minutes = 10 * (text[3] - '0') + text[4] - '0';
  const int all = 60 * hours + minutes;
  if (minutes >= 60 || all > kMinutesPerDay) return std::nullopt;
  return all;
}

std::optional<std::string> near_time_of_day(std::string_view text) {
  std::string near(text.substr(0, text.find(':')));
  auto minutes = text.substr(std::min(near.size(), text.size()));
  minutes = minutes.empty() ? ":00" : minutes.substr(0, 3);  // seconds are left out
  if (near.size() == 1) near.insert(near.begin(), '0');
  near += minutes;
  return parse_time_of_day(near) ? std::optional(near) : std::nullopt;
}

std::string time_of_day(int minute) { return fmt::format("{:02}:{:02}", minute / 60, minute % 60); }

std::optional<std::pair<std::size_t, std::size_t>> overlapping(
    std::span<const RateWindow> windows) {
  std::array<std::optional<std::size_t>, kMinutesPerDay> taken;
  for (std::size_t i = 0; i < windows.size(); ++i)
    for (int minute = 0; minute < kMinutesPerDay; ++minute) {
      if (!windows[i].holds(minute)) continue;
      auto& by = taken[static_cast<std::size_t>(minute)];
      if (by) return std::pair(*by, i);
      by = i;
    }
  return std::nullopt;
}

bool cover_the_day(std::span<const RateWindow> windows) {
  for (int minute = 0; minute < kMinutesPerDay; ++minute)
    if (std::ranges::none_of(windows, [&](const RateWindow& w) { return w.holds(minute); }))
      return false;
  return true;
}

RateNow rate_at(std::span<const RateWindow> windows, std::int64_t otherwise, int minute) {
  const auto rate = [&](int at) {
    const auto found =
        std::ranges::find_if(windows, [&](const RateWindow& w) { return w.holds(at); });
    return found == windows.end() ? otherwise : found->rate_limit;
  };
  // The next edge of a window, today or tomorrow.
  int soonest = kMinutesPerDay;
  for (const auto& window : windows)
    for (const int edge : {window.from, window.to % kMinutesPerDay}) {
      const int away = (edge - minute + kMinutesPerDay) % kMinutesPerDay;
      soonest = std::min(soonest, away == 0 ? kMinutesPerDay : away);
    }
  const int until = (minute + soonest) % kMinutesPerDay;
  return {.rate_limit = rate(minute),
          .until = until,
          .tomorrow = minute + soonest >= kMinutesPerDay,
          .then = rate(until)};
}

std::string rate_sentence(const RateNow& now) {
  return fmt::format("{} until {}{}, then {}", exact_rate(now.rate_limit), time_of_day(now.until),
                     now.tomorrow ? " tomorrow" : "", exact_rate(now.then));
}

int minute_of_day(Nanoseconds unix_time) {
  // Rounded down also before 1970, where a clock that was never set may be.
  const auto seconds = unix_time / kSecond - (unix_time % kSecond < 0 ? 1 : 0);
  const auto time = static_cast<std::time_t>(seconds);
  tm local{};
  ::tzset();  // which localtime_r need not do: somebody may have changed the zone
  if (::localtime_r(&time, &local) == nullptr) return 0;
  return 60 * local.tm_hour + local.tm_min;
}

bool is_time_zone(const std::string& name) {
  if (name == "UTC") return true;
  if (name.empty() || name.front() == '/' || name.front() == ':' ||
      name.find("..") != std::string::npos || name.find('\0') != std::string::npos)
    return false;
  std::error_code failed;
  return std::filesystem::is_regular_file(zone_folder() / name, failed);
}

std::optional<std::string> near_time_zone(std::string_view written) {
  // Country, coordinates, zone; of one country after another.
  std::ifstream table(zone_folder() / "zone.tab");
  std::vector<std::string> zones = {"UTC"}, cities = {"UTC"};
  for (std::string line; std::getline(table, line);) {
    std::string country, place, zone;
    if (line.starts_with('#') || !(std::istringstream(line) >> country >> place >> zone)) continue;
    cities.push_back(zone.substr(zone.rfind('/') + 1));
    zones.push_back(std::move(zone));
  }
  for (const auto* names : {&zones, &cities}) {
    const std::vector<std::string_view> allowed(names->begin(), names->end());
    if (const auto near = nearest_name(written, allowed))
      return zones[static_cast<std::size_t>(std::ranges::find(allowed, *near) - allowed.begin())];
  }
  return std::nullopt;
}

void use_time_zone(const std::string& name) {
  ::setenv("TZ", name == "UTC" ? "UTC0" : (":" + name).c_str(), 1);
  ::tzset();
}

}  // namespace isthmus::launcher

#include "launcher/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace isthmus::launcher {
namespace {

__extension__ using Wide = __int128;
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

struct UnitName {
  std::string_view name;
  std::int64_t factor;
};

constexpr std::int64_t kKilo = 1'000, kMega = 1'000'000, kGiga = 1'000'000'000,
                       kTera = 1'000'000'000'000;
constexpr std::int64_t kKibi = 1LL << 10, kMebi = 1LL << 20, kGibi = 1LL << 30, kTebi = 1LL << 40;

constexpr std::array kByteUnits = {
    UnitName{"B", 1},       UnitName{"byte", 1},    UnitName{"bytes", 1},   UnitName{"kB", kKilo},
    UnitName{"KB", kKilo},  UnitName{"MB", kMega},  UnitName{"GB", kGiga},  UnitName{"TB", kTera},
    UnitName{"KiB", kKibi}, UnitName{"kiB", kKibi}, UnitName{"MiB", kMebi}, UnitName{"GiB", kGibi},
    UnitName{"TiB", kTebi},
};

constexpr std::array kRateUnits = {
    UnitName{"bit/s", 1},         UnitName{"b/s", 1},           UnitName{"bps", 1},
    UnitName{"kbit/s", kKilo},    UnitName{"Kbit/s", kKilo},    UnitName{"kb/s", kKilo},
    UnitName{"kbps", kKilo},      UnitName{"Mbit/s", kMega},    UnitName{"mbit/s", kMega},
    UnitName{"Mb/s", kMega},      UnitName{"Mbps", kMega},      UnitName{"Gbit/s", kGiga},
    UnitName{"gbit/s", kGiga},    UnitName{"Gb/s", kGiga},      UnitName{"Gbps", kGiga},
    UnitName{"Tbit/s", kTera},    UnitName{"B/s", 8},           UnitName{"kB/s", 8 * kKilo},
    UnitName{"KB/s", 8 * kKilo},  UnitName{"MB/s", 8 * kMega},  UnitName{"GB/s", 8 * kGiga},
    UnitName{"KiB/s", 8 * kKibi}, UnitName{"MiB/s", 8 * kMebi}, UnitName{"GiB/s", 8 * kGibi},
    UnitName{"Mibit/s", kMebi},   UnitName{"Gibit/s", kGibi},
};

constexpr std::int64_t kMinute = 60 * kSecond, kHour = 60 * kMinute, kDay = 24 * kHour;

constexpr std::array kDurationUnits = {
    UnitName{"ns", 1},
    UnitName{"us", kMicrosecond},
    UnitName{"\u00b5s", kMicrosecond},  // micro sign
    UnitName{"\u03bcs", kMicrosecond},  // Greek mu
    UnitName{"ms", kMillisecond},
    UnitName{"s", kSecond},
    UnitName{"sec", kSecond},
    UnitName{"second", kSecond},
    UnitName{"seconds", kSecond},
    UnitName{"min", kMinute},
    UnitName{"minute", kMinute},
    UnitName{"minutes", kMinute},
    UnitName{"h", kHour},
    UnitName{"hour", kHour},
    UnitName{"hours", kHour},
    UnitName{"d", kDay},
    UnitName{"day", kDay},
    UnitName{"days", kDay},
};

// What one kind of quantity is called in an error, and how to write it.
struct Quantity {
  std::string_view name;
  std::string_view smallest;
  std::string_view example;
  std::span<const UnitName> units;
};

constexpr Quantity kBytes{"size", "byte", "\"64 MiB\" (B, kB, MB, GB, KiB, MiB, GiB)", kByteUnits};
constexpr Quantity kRate{"rate", "bit per second",
                         "\"20 Mbit/s\" (kbit/s, Mbit/s, Gbit/s, kB/s, MB/s) or \"unlimited\"",
                         kRateUnits};
constexpr Quantity kDuration{"duration", "nanosecond", "\"60 s\" (ms, s, min, h, d)",
                             kDurationUnits};

Error refuse(const Quantity& quantity, std::string_view text, std::string_view why) {
  return Error{ErrorCode::invalid_argument,
               fmt::format("\"{}\" is no {}: {}; write it like {}", text, quantity.name, why,
                           quantity.example)};
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

void skip_spaces(std::string_view& text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
}

constexpr int kDigitsMax = 20;  // times the largest unit fits Wide

// digits / 10^decimals.
struct Decimal {
  Wide digits = 0;
  int decimals = 0;
};

// Takes a decimal number off the front of `text`; nothing when there is none or it is too long.
std::optional<Decimal> take_decimal(std::string_view& text) {
  Decimal number;
  bool any = false, fraction = false;
  int digits = 0;
  while (!text.empty()) {
    const char c = text.front();
    if (c == '.' && !fraction && any && text.size() > 1 && is_digit(text[1])) {
      fraction = true;
    } else if (is_digit(c)) {
      if (++digits > kDigitsMax) return std::nullopt;
      number.digits = number.digits * 10 + (c - '0');
      if (fraction) ++number.decimals;
      any = true;
    } else {
      break;
    }
    text.remove_prefix(1);
  }
  if (!any) return std::nullopt;
  while (number.decimals > 0 && number.digits % 10 == 0) {
    number.digits /= 10;
    --number.decimals;
  }
  return number;
}

// Takes letters, '/' and bytes above ASCII (µ) off the front of `text`.
std::string_view take_unit(std::string_view& text) {
  std::size_t n = 0;
  while (n < text.size() && text[n] != ' ' && text[n] != '.' && !is_digit(text[n])) ++n;
  const auto unit = text.substr(0, n);
  text.remove_prefix(n);
  return unit;
}

std::string_view ambiguous(std::string_view unit) {
  if (unit == "m" || unit == "M") return "\"m\" could be minutes or milliseconds (min, ms)";
  if (unit == "mb/s" || unit == "mbps")
    return "\"m\" and \"b\" could be bits or bytes (Mbit/s, MB/s)";
  return {};
}

// One "number unit" off the front of `text`.
Result<std::int64_t> take_quantity(const Quantity& quantity, std::string_view whole,
                                   std::string_view& text) {
  skip_spaces(text);
  if (!text.empty() && text.front() == '-')
    return refuse(quantity, whole, "it must not be negative");
  const auto number = take_decimal(text);
  if (!number)
    return refuse(quantity, whole, "it does not begin with a decimal number of at most 20 digits");
  skip_spaces(text);
  const auto unit = take_unit(text);
  if (unit.empty()) return refuse(quantity, whole, "the unit is missing");
  for (const auto& known : quantity.units) {
    if (known.name != unit) continue;
    Wide value = number->digits * known.factor;
    for (int i = 0; i < number->decimals; ++i) {
      if (value % 10 != 0)
        return refuse(quantity, whole, fmt::format("it is no whole {}", quantity.smallest));
      value /= 10;
    }
    if (value > kMax) return refuse(quantity, whole, "it is too large");
    return static_cast<std::int64_t>(value);
  }
  const auto two_meanings = ambiguous(unit);
  if (!two_meanings.empty()) return refuse(quantity, whole, two_meanings);
  return refuse(quantity, whole, fmt::format("\"{}\" is no unit of it", unit));
}

Result<std::int64_t> parse_one(const Quantity& quantity, std::string_view whole) {
  std::string_view text = whole;
  ISTHMUS_TRY(const std::int64_t value, take_quantity(quantity, whole, text));
  skip_spaces(text);
  if (!text.empty()) return refuse(quantity, whole, fmt::format("\"{}\" follows the unit", text));
  return value;
}

// The largest unit (units ascend) that gives at most three decimals.
std::string exact(std::int64_t value, std::span<const UnitName> units) {
  for (std::size_t i = units.size(); i-- > 0;) {
    const auto [name, factor] = units[i];
    if (value < factor) continue;
    const Wide thousandths = Wide{value} * 1000;
    if (thousandths % factor != 0) continue;
    const auto rounded = static_cast<std::uint64_t>(thousandths / factor);
    std::string number = fmt::format("{}", rounded / 1000);
    if (rounded % 1000 != 0) {
      number += fmt::format(".{:03}", rounded % 1000);
      while (number.back() == '0') number.pop_back();
    }
    return fmt::format("{} {}", number, name);
  }
  return fmt::format("{} {}", value, units.front().name);
}

struct Step {
  std::string_view name;
  double factor;
};

std::string about(double value, std::span<const Step> steps) {
  if (!std::isfinite(value)) return "?";
  value = std::max(value, 0.0);
  std::size_t i = 0;
  while (i + 1 < steps.size() && value >= 0.9995 * steps[i + 1].factor) ++i;
  const double scaled = value / steps[i].factor;
  const int decimals = scaled >= 99.95 || (i == 0 && scaled == std::floor(scaled)) ? 0
                       : scaled >= 9.995                                           ? 1
                                                                                   : 2;
  const auto number = fmt::format("{:.{}f}", scaled, decimals);
  return steps[i].name.empty() ? number : number + " " + std::string(steps[i].name);
}

}  // namespace

Result<std::int64_t> parse_bytes(std::string_view text) { return parse_one(kBytes, text); }

Result<std::int64_t> parse_rate(std::string_view text) {
  if (text == "unlimited") return std::int64_t{0};
  ISTHMUS_TRY(const std::int64_t rate, parse_one(kRate, text));
  if (rate == 0) return refuse(kRate, text, "at that rate nothing is ever sent");
  return rate;
}

Result<Nanoseconds> parse_duration(std::string_view whole) {
  std::string_view text = whole;
  Nanoseconds sum = 0;
  do {
    ISTHMUS_TRY(const Nanoseconds part, take_quantity(kDuration, whole, text));
    if (part > kMax - sum) return refuse(kDuration, whole, "it is too large");
    sum += part;
    skip_spaces(text);
  } while (!text.empty());
  return sum;
}

std::string exact_bytes(std::int64_t bytes) {
  static constexpr std::array kUnits = {
      UnitName{"B", 1},       UnitName{"kB", kKilo},  UnitName{"KiB", kKibi},
      UnitName{"MB", kMega},  UnitName{"MiB", kMebi}, UnitName{"GB", kGiga},
      UnitName{"GiB", kGibi}, UnitName{"TB", kTera},  UnitName{"TiB", kTebi},
  };
  return exact(bytes, kUnits);
}

std::string exact_rate(std::int64_t bits_per_second) {
  static constexpr std::array kUnits = {UnitName{"bit/s", 1}, UnitName{"kbit/s", kKilo},
                                        UnitName{"Mbit/s", kMega}, UnitName{"Gbit/s", kGiga}};
  return bits_per_second == 0 ? "unlimited" : exact(bits_per_second, kUnits);
}

std::string exact_duration(Nanoseconds duration) {
  static constexpr std::array kUnits = {UnitName{"ns", 1}, UnitName{"us", kMicrosecond},
                                        UnitName{"ms", kMillisecond}, UnitName{"s", kSecond}};
  if (duration == 0) return "0 s";
  for (const auto& unit : {UnitName{"d", kDay}, UnitName{"h", kHour}, UnitName{"min", kMinute}})
    if (duration > unit.factor && duration % unit.factor == 0)
      return fmt::format("{} {}", duration / unit.factor, unit.name);
  return exact(duration, kUnits);
}

std::string about_bytes(double bytes) {
  static constexpr std::array kSteps = {Step{"B", 1},    Step{"kB", 1e3},  Step{"MB", 1e6},
                                        Step{"GB", 1e9}, Step{"TB", 1e12}, Step{"PB", 1e15},
                                        Step{"EB", 1e18}};
  return about(bytes, kSteps);
}

std::string about_rate(double bits_per_second) {
  static constexpr std::array kSteps = {Step{"bit/s", 1}, Step{"kbit/s", 1e3}, Step{"Mbit/s", 1e6},
                                        Step{"Gbit/s", 1e9}};
  return about(bits_per_second, kSteps);
}

std::string about_duration(double seconds) {
  static constexpr std::array kSteps = {Step{"us", 1e-6}, Step{"ms", 1e-3}, Step{"s", 1},
                                        Step{"min", 60},  Step{"h", 3600},  Step{"d", 86400}};
  return about(seconds, kSteps);
}

std::string about_count(double count) {
  static constexpr std::array kSteps = {Step{"", 1}, Step{"k", 1e3}, Step{"M", 1e6}, Step{"G", 1e9},
                                        Step{"T", 1e12}};
  return about(count, kSteps);
}

}  // namespace isthmus::launcher

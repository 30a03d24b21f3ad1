// Sizes, rates and durations as people write them: "64 MiB", "20 Mbit/s", "1.5 min".
//
// A number is decimal digits with an optional fraction; a space before the unit is optional. The
// result is exact: what is no whole byte, bit per second or nanosecond, or does not fit 63 bits, is
// refused, and so is a unit that means two things ("m", "mb/s"). Every parse error is
// invalid_argument, in one sentence that says how to write it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace isthmus::launcher {

// B, kB MB GB TB (powers of 1000), KiB MiB GiB TiB (powers of 1024).
Result<std::int64_t> parse_bytes(std::string_view text);

// Bits per second. bit/s … Gbit/s (also bps, b/s), B/s … GB/s and KiB/s … GiB/s (8 bits each);
// "unlimited" is 0.
Result<std::int64_t> parse_rate(std::string_view text);

// ns, us, ms, s, min, h, d, also written out ("seconds"); several may follow each other: "1 h 30
// min".
Result<Nanoseconds> parse_duration(std::string_view text);

// Exact: parsing gives the same value again. The largest unit that leaves a short number.
std::string exact_bytes(std::int64_t bytes);
std::string exact_rate(std::int64_t bits_per_second);
std::string exact_duration(Nanoseconds duration);

// For people, with three significant digits: "18.3 MB", "1.27 GB", "940 ms".
std::string about_bytes(double bytes);
std::string about_rate(double bits_per_second);  // "64.0 kbit/s"
std::string about_duration(double seconds);
std::string about_count(double count);  // "4.52 M", "812"

}  // namespace isthmus::launcher

#include "launcher/units.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace isthmus::launcher {
namespace {

TEST(Units, BytesInAllSpellings) {
  for (const auto& [text, bytes] : std::vector<std::pair<std::string, std::int64_t>>{
           {"0 B", 0},
           {"1 byte", 1},
           {"7bytes", 7},
           {"1 kB", 1000},
           {"1KB", 1000},
           {"64 MiB", 64LL << 20},
           {"64MiB", 64LL << 20},
           {"1.5 GB", 1'500'000'000},
           {"0.5 KiB", 512},
           {"2 TiB", 2LL << 40},
           {" 3  MB ", 3'000'000},
           {"0.000001 MB", 1},
           {"9223372036854775807 B", std::numeric_limits<std::int64_t>::max()}}) {
    const auto parsed = parse_bytes(text);
    ASSERT_TRUE(parsed) << text << ": " << parsed.error().text();
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(Units, RatesInAllSpellings) {
  for (const auto& [text, rate] :
       std::vector<std::pair<std::string, std::int64_t>>{{"20 Mbit/s", 20'000'000},
                                                         {"20Mbit/s", 20'000'000},
                                                         {"20 mbit/s", 20'000'000},
                                                         {"20 Mbps", 20'000'000},
                                                         {"20 Mb/s", 20'000'000},
                                                         {"2.5 MB/s", 20'000'000},
                                                         {"1 GiB/s", 8LL << 30},
                                                         {"56 kbit/s", 56'000},
                                                         {"9600 bps", 9600},
                                                         {"0.25 Gbit/s", 250'000'000},
                                                         {"unlimited", 0}}) {
    const auto parsed = parse_rate(text);
    ASSERT_TRUE(parsed) << text << ": " << parsed.error().text();
    EXPECT_EQ(*parsed, rate) << text;
  }
}

TEST(Units, DurationsInAllSpellings) {
  for (const auto& [text, duration] :
       std::vector<std::pair<std::string, Nanoseconds>>{{"60 s", 60 * kSecond},
                                                        {"60s", 60 * kSecond},
                                                        {"1 second", kSecond},
                                                        {"250 ms", 250 * kMillisecond},
                                                        {"3 us", 3000},
                                                        {"3 \u00b5s", 3000},
                                                        {"5 ns", 5},
                                                        {"1.5 min", 90 * kSecond},
                                                        {"2 minutes", 120 * kSecond},
                                                        {"1 h 30 min", 5400 * kSecond},
                                                        {"1h30min", 5400 * kSecond},
                                                        {"2 days", 172800 * kSecond}}) {
    const auto parsed = parse_duration(text);
    ASSERT_TRUE(parsed) << text << ": " << parsed.error().text();
    EXPECT_EQ(*parsed, duration) << text;
  }
}

TEST(Units, RefusesWhatIsNoQuantity) {
  for (const char* text : {"", " ", "MiB", "64", "-1 B", "64 Mibs", "1 .5 MB", "1. MB", ".5 MB",
                           "1e3 B", "0.5 B", "64 MiB x", "1 MB 2 MB", "9223372036854775808 B",
                           "9007199254740993 KiB", "99999999999999999999 B", "inf B", "1,5 MB"})
    EXPECT_FALSE(parse_bytes(text)) << text;
  for (const char* text : {"0 Mbit/s", "20", "20 Mbit", "20 mb/s", "20 MB", "0.1 bit/s"})
    EXPECT_FALSE(parse_rate(text)) << text;
  for (const char* text : {"5 m", "5 M", "300 years", "106752 d", "1 s 106751 d 24 h", "-1 s"})
    EXPECT_FALSE(parse_duration(text)) << text;
}

TEST(Units, AnErrorSaysWhatToWrite) {
  EXPECT_EQ(
      parse_rate("20 mb/s").error().text(),
      "\"20 mb/s\" is no rate: \"m\" and \"b\" could be bits or bytes (Mbit/s, MB/s); write it "
      "like \"20 Mbit/s\" (kbit/s, Mbit/s, Gbit/s, kB/s, MB/s) or \"unlimited\"");
  EXPECT_EQ(parse_bytes("64").error().text(),
            "\"64\" is no size: the unit is missing; write it like \"64 MiB\" (B, kB, MB, GB, KiB, "
            "MiB, GiB)");
}

TEST(Units, ExactTextParsesToTheSameValue) {
  for (const std::int64_t value :
       {std::int64_t{1}, std::int64_t{999}, std::int64_t{1000}, std::int64_t{1024},
        std::int64_t{123456789}, std::int64_t{64} << 20, std::int64_t{1500} * 1000 * 1000,
        std::int64_t{1} << 50, std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_EQ(parse_bytes(exact_bytes(value)).value(), value) << exact_bytes(value);
    EXPECT_EQ(parse_rate(exact_rate(value)).value(), value) << exact_rate(value);
    EXPECT_EQ(parse_duration(exact_duration(value)).value(), value) << exact_duration(value);
  }
  EXPECT_EQ(exact_bytes(64 << 20), "64 MiB");
  EXPECT_EQ(exact_rate(20'000'000), "20 Mbit/s");
  EXPECT_EQ(exact_rate(0), "unlimited");
  EXPECT_EQ(exact_duration(60 * kSecond), "60 s");
  EXPECT_EQ(exact_duration(600 * kSecond), "10 min");
  EXPECT_EQ(exact_duration(1500 * kMillisecond), "1.5 s");
}

TEST(Units, AboutHasThreeDigits) {
  EXPECT_EQ(about_bytes(0), "0 B");
  EXPECT_EQ(about_bytes(812), "812 B");
  EXPECT_EQ(about_bytes(18.31e6), "18.3 MB");
  EXPECT_EQ(about_rate(64'000), "64.0 kbit/s");
  EXPECT_EQ(about_rate(999'600), "1.00 Mbit/s");
  EXPECT_EQ(about_rate(19.64e6), "19.6 Mbit/s");
  EXPECT_EQ(about_bytes(999.6e6), "1.00 GB");
  EXPECT_EQ(about_duration(0.94), "940 ms");
  EXPECT_EQ(about_duration(95), "1.58 min");
  EXPECT_EQ(about_count(4'523'456), "4.52 M");
  EXPECT_EQ(about_bytes(std::numeric_limits<double>::quiet_NaN()), "?");
}

}  // namespace
}  // namespace isthmus::launcher

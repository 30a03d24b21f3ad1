#include "tests/wan/network_settings.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace isthmus::wan {
namespace {

NetworkSettings parsed(const std::string& text, std::size_t sites = 3) {
  auto settings = parse_network_settings(text, sites);
  EXPECT_TRUE(settings) << settings.error().text();
  return settings ? *settings : NetworkSettings(sites);
}

std::string error_of(const std::string& text, std::size_t sites = 3) {
  const auto settings = parse_network_settings(text, sites);
  EXPECT_FALSE(settings) << text;
  if (settings) return "";
  EXPECT_EQ(settings.error().code, ErrorCode::invalid_argument);
  return settings.error().text();
}

TEST(NetworkSettings, NothingSaidIsAPerfectNetwork) {
  for (const char* text : {"", "\n\n", "  # nothing\n\t\r\n"})
    for (const auto& path : parsed(text).paths) EXPECT_EQ(path, PathSettings{}) << text;
}

TEST(NetworkSettings, EverySettingOfAPath) {
  const auto settings = parsed(
      "path 0 1 delay=50ms jitter=300us rate=1.5gbit queue=4mb loss=0.1% burst=20 dup=0.002 "
      "corrupt=1% reorder down");
  const PathSettings expected{.delay = 50 * kMillisecond,
                              .jitter = 300 * kMicrosecond,
                              .bits_per_second = 1.5e9,
                              .queue_bytes = 4e6,
                              .loss = 0.001,
                              .burst = 20,
                              .duplicate = 0.002,
                              .corrupt = 0.01,
                              .reorder = true,
                              .down = true};
  EXPECT_EQ(settings.path(0, 1), expected);
  EXPECT_EQ(settings.path(1, 0), PathSettings{});
}

TEST(NetworkSettings, UnitsInAllSpellings) {
  for (const auto& [text, delay] : std::vector<std::pair<std::string, Nanoseconds>>{
           {"0", 0}, {"2s", 2 * kSecond}, {"0.5ms", 500 * kMicrosecond}, {"7us", 7000}})
    EXPECT_EQ(parsed("default delay=" + text).path(2, 1).delay, delay) << text;
  for (const auto& [text, rate] : std::vector<std::pair<std::string, double>>{
           {"0", 0}, {"9600bit", 9600}, {"56kbit", 56e3}, {"100Mbit", 100e6}, {"10gbit", 10e9}})
    EXPECT_EQ(parsed("default rate=" + text).path(2, 1).bits_per_second, rate) << text;
  for (const auto& [text, bytes] : std::vector<std::pair<std::string, double>>{
           {"0", 0}, {"100b", 100}, {"64kb", 64e3}, {"4MB", 4e6}, {"64KiB", 65536}})
    EXPECT_EQ(parsed("default queue=" + text).path(2, 1).queue_bytes, bytes) << text;
  for (const auto& [text, share] : std::vector<std::pair<std::string, double>>{
           {"0", 0}, {"0.25", 0.25}, {"25%", 0.25}, {"100%", 1}, {"1e-3", 0.001}})
    EXPECT_DOUBLE_EQ(parsed("default loss=" + text).path(2, 1).loss, share) << text;
}

TEST(NetworkSettings, LaterLinesOverrideEarlierOnes) {
  const auto settings = parsed(
      "default delay=50ms loss=1% reorder down\n"
      "link 0 1 delay=20ms up   # both directions\n"
      "path 1 0 in_order\r\n"
      "path 1 0 loss=0");
  EXPECT_EQ(settings.path(0, 1),
            (PathSettings{.delay = 20 * kMillisecond, .loss = 0.01, .reorder = true}));
  EXPECT_EQ(settings.path(1, 0), (PathSettings{.delay = 20 * kMillisecond}));
  EXPECT_EQ(
      settings.path(1, 2),
      (PathSettings{.delay = 50 * kMillisecond, .loss = 0.01, .reorder = true, .down = true}));
}

TEST(NetworkSettings, AccessLinesAndTheSeed) {
  const auto settings =
      parsed("seed 18446744073709551615\nuplink 2 rate=1mbit queue=9kb\ndownlink 0 down");
  EXPECT_EQ(settings.seed, 18446744073709551615u);
  EXPECT_EQ(settings.uplinks[2], (PathSettings{.bits_per_second = 1e6, .queue_bytes = 9000}));
  EXPECT_EQ(settings.uplinks[0], PathSettings{});
  EXPECT_EQ(settings.downlinks[0], PathSettings{.down = true});
}

TEST(NetworkSettings, AnErrorNamesTheLineAndSaysWhatToWrite) {
  EXPECT_EQ(error_of("default rate=1gbit\n\nlink 0 1 delay=20  # far\nlink 9 9"),
            "line 3, \"link 0 1 delay=20  # far\": delay=20: the unit is missing; write it like "
            "delay=50ms (s, ms, us; at most an hour)");
}

TEST(NetworkSettings, EveryKindOfBadLine) {
  for (const auto& [line, says] : std::vector<std::pair<std::string, std::string>>{
           {"links 0 1 down", "begins no line; one begins with seed, default, link"},
           {"seed", "write it like seed 42"},
           {"seed x", "\"x\" is no whole number below 2^64; write it like seed 42"},
           {"seed -1", "\"-1\" is no whole number"},
           {"seed 1.5", "\"1.5\" is no whole number"},
           {"seed 18446744073709551616", "is no whole number below 2^64"},
           {"seed 1 2", "seed takes one number"},
           {"link 0", "link needs the number of a site, from 0 to 2"},
           {"link 0 3 down", "there is no site \"3\"; sites are 0 to 2"},
           {"path -1 0 down", "there is no site \"-1\""},
           {"path 0 1x down", "there is no site \"1x\""},
           {"uplink down", "there is no site \"down\""},
           {"link 1 1 down", "no path to itself; name two sites"},
           {"link 0 1", "sets nothing; add a setting"},
           {"default", "sets nothing"},
           {"default latency=5ms", "\"latency\" is no setting; there are delay="},
           {"default fast", "\"fast\" is no setting; there are delay="},
           {"default delay", "delay needs a value; write it like delay=50ms"},
           {"default delay=", "no number begins it; write it like delay=50ms"},
           {"default delay=ms", "no number begins it"},
           {"default delay=50 ms", "the unit is missing"},
           {"default delay=50m", "\"m\" is no unit of it; write it like delay=50ms"},
           {"default delay=-1ms", "out of bounds; write it like delay=50ms"},
           {"default delay=2000000s", "out of bounds"},
           {"default delay=nan", "no number begins it"},
           {"default jitter=infs", "no number begins it"},
           {"default rate=100mb", "\"mb\" is no unit of it; write it like rate=100mbit"},
           {"default rate=100", "the unit is missing; write it like rate=100mbit"},
           {"default queue=4", "the unit is missing; write it like queue=4mb"},
           {"default loss=1.5", "out of bounds; write it like loss=0.1% or 0.001"},
           {"default dup=101%", "out of bounds; write it like dup="},
           {"default corrupt=1ppm", "\"ppm\" is no unit of it"},
           {"default burst=0.5", "out of bounds; write it like burst=20"},
           {"default burst=20ms", "\"ms\" is no unit of it"},
           {"default delay=5ms loss=1% delay=6ms", "\"delay\" is said twice in one line"},
           {"default down rate=1gbit up", "\"up\" is said twice in one line, or its contrary"},
           {"default reorder in_order", "\"in_order\" is said twice"},
           {"uplink 0 rate=1mbit rate=1mbit", "\"rate\" is said twice"},
           {"default loss=90% burst=2", "a loss of 90% needs burst=1 or runs of at least burst=9"},
           {"default down=1", "down takes no value; write down"},
           {"uplink 0 loss=1%", "an access line has no loss, only rate=, queue=, down and up"},
           {"downlink 0 reorder", "an access line has no reorder"}}) {
    const auto error = error_of("# first\n" + line);
    EXPECT_NE(error.find(says), std::string::npos) << line << "\n" << error;
    EXPECT_EQ(error.find("line 2, \"" + line + "\": "), 0u) << error;
  }
}

}  // namespace
}  // namespace isthmus::wan

// Rates, and advice, from what both ends of a link test have seen.
#include "inter/link_test_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

namespace isthmus::inter {
namespace {

using testing::HasSubstr;
using testing::Not;

LinkTestReport report_of(Nanoseconds round_trip) {
  LinkTestReport report;
  report.here = "alpha";
  report.there = "beta";
  report.round_trips = {round_trip};
  return report;
}

TEST(LinkTestReport, TheRampIsLeftOutOfTheRate) {
  std::vector<LinkTestSample> samples;
  std::uint64_t bytes = 500;
  for (int i = 0; i <= 100; ++i) {
    samples.push_back({(100 + i) * 10 * kMillisecond, bytes});
    bytes += i < 30 ? 1000 : 12'500;  // 10 Mbit/s
  }
  for (int i = 101; i < 110; ++i)  // and silence
    samples.push_back({(100 + i) * 10 * kMillisecond, samples[100].bytes});
  const auto got = warm_rate(samples);
  EXPECT_NEAR(got.bits_per_second, 10e6, 1e3);
  EXPECT_EQ(got.warm, 600 * kMillisecond);
  EXPECT_EQ(got.bytes, samples.back().bytes - 500);
  EXPECT_EQ(warm_rate({}).bits_per_second, 0);
  EXPECT_EQ(warm_rate(std::vector<LinkTestSample>{{5, 1}}).bits_per_second, 0);
  EXPECT_EQ(warm_rate(std::vector<LinkTestSample>(4, {5, 1})).bits_per_second, 0);
}

// Nearly all of a megabyte had come before the second look.
TEST(LinkTestReport, AScrapIsNoRate) {
  std::vector<LinkTestSample> samples = {{0, 0}};
  for (int i = 1; i <= 4; ++i)
    samples.push_back({i * 20 * kMillisecond, 1'000'000 - (i < 4 ? 60U : 0U)});
  EXPECT_EQ(warm_rate(samples).bits_per_second, 0);
  EXPECT_EQ(warm_rate(samples).bytes, 1'000'000U);
  const auto phase = warm_phase(samples);
  ASSERT_TRUE(std::holds_alternative<Unmeasured>(phase));
  EXPECT_EQ(std::get<Unmeasured>(phase), Unmeasured::too_little);
}

// Each round trip of 100 ms carries twice what the one before did.
TEST(LinkTestReport, AWindowThatStillOpensIsNoCapacity) {
  std::vector<LinkTestSample> samples = {{0, 0}};
  std::uint64_t in_round_trip = 1000;
  for (int i = 1; i <= 60; ++i) {
    samples.push_back({i * 20 * kMillisecond, samples.back().bytes + in_round_trip});
    if (i % 5 == 0) in_round_trip *= 2;
  }
  EXPECT_EQ(warm_rate(samples).bits_per_second, 0);
  EXPECT_EQ(warm_rate(samples).unmeasured, Unmeasured::rising);
}

// 100 kB on a long line: over before its window has opened.
TEST(LinkTestReport, AFewRoundTripsTellNothing) {
  auto report = report_of(100 * kMillisecond);
  report.plan = {.time = 4 * kSecond, .bytes_max = 100'000};
  LinkTestSent sent;
  sent.bytes = 100'000;
  sent.arrived = 50'000;
  sent.warm = 180 * kMillisecond;
  sent.segments = 40;
  sent.congestion_control = "bbr";
  const LinkTestGot got{.bits_per_second = 2.2e6, .warm = 180 * kMillisecond, .bytes = 100'000};
  report.to_peer = report.from_peer = {sent, got};
  for (auto* direction : {&report.to_peer, &report.from_peer})
    direction->forget_if_short(report.round_trip_min());
  const auto json = nlohmann::json::parse(report.to_json());
  for (const char* name : {"mbit_s", "loss", "bandwidth_delay_bytes"})
    EXPECT_TRUE(json["to_peer"][name].is_null()) << name;
  EXPECT_EQ(json["to_peer"]["bytes"], 100'000);
  const auto advice = report.advice();
  ASSERT_EQ(advice.size(), 2U);
  EXPECT_EQ(advice[0],
            "from alpha all was over within a few round trips: test with more bytes (--bytes)");
  // For long enough it tells.
  sent.warm = 600 * kMillisecond;
  report.to_peer = {sent, got};
  report.to_peer.forget_if_short(report.round_trip_min());
  EXPECT_GT(report.to_peer.bits_per_second(), 0);
}

TEST(LinkTestReport, WhatAQueueDroppedIsNotSaidToBeTheLines) {
  auto report = report_of(kMillisecond);
  LinkTestSent sent;
  sent.segments = 1000;
  sent.segments_resent = 20;
  const LinkTestGot got{.bits_per_second = 1e9, .warm = kSecond, .bytes = 1};
  report.to_peer = report.from_peer = {sent, got};
  EXPECT_TRUE(report.advice().empty());
  report.to_peer.sent.segments_resent = 1000;
  ASSERT_EQ(report.advice().size(), 1U);
  EXPECT_THAT(report.advice()[0],
              HasSubstr("from alpha 100 % of the segments were sent again: either the line loses"));
}

TEST(LinkTestReport, OnAThinLineWhatAQueueDroppedIsNoLossAtAll) {
  auto report = report_of(100 * kMillisecond);
  LinkTestSent sent;
  sent.arrived = 8'000;
  sent.warm = kSecond;
  sent.segments = 28;
  sent.segments_resent = 20;
  sent.connections = 4;
  report.to_peer = {sent, {}};
  sent.segments_resent = 0;
  report.from_peer = {sent, {}};
  ASSERT_EQ(report.advice().size(), 1U);
  EXPECT_THAT(report.advice()[0],
              HasSubstr("from alpha 71 % of the segments were sent again: so thin a line has 800 "
                        "bytes on their way"));
}

TEST(LinkTestReport, WhatCouldBeReadIsNoFigureWhereTheSenderSawItsRateRise) {
  auto report = report_of(kMillisecond);
  LinkTestSent sent;
  sent.congestion_control = "bbr";
  report.to_peer =
      report.from_peer = {sent, {.bits_per_second = 384e3, .warm = 2 * kSecond, .bytes = 250'000}};
  report.to_peer.sent.unmeasured = Unmeasured::too_little;
  EXPECT_EQ(report.to_peer.bits_per_second(), 0);
  ASSERT_EQ(report.advice().size(), 2U);
  EXPECT_EQ(report.advice()[0], "from alpha too little came to tell: test for longer (--time)");
  EXPECT_EQ(report.advice()[1],
            "from beta the rate still rose at the end: test for longer (--time)");
  // No kernel tells.
  report.to_peer.sent.congestion_control.clear();
  EXPECT_EQ(report.to_peer.bits_per_second(), 384e3);
}

TEST(LinkTestReport, WhatNoKernelAllowsIsAdvisedWithinReason) {
  auto report = report_of(kMillisecond);
  report.side_here.tcp_wmem = "1 1 18446744073709551615";
  LinkTestSent sent;
  sent.arrived = ~std::uint64_t{0};
  sent.warm = sent.segments = 1;
  sent.busy = sent.limited_by_buffer = kSecond;
  report.to_peer = report.from_peer = {sent, {}};
  ASSERT_FALSE(report.advice().empty());
  EXPECT_THAT(report.advice()[0], HasSubstr("tcp_wmem=\"1 1 1099511627776\""));
}

// What the other end says of itself becomes part of commands that somebody may run as root.
TEST(LinkTestReport, NoWordsOfTheOtherEndAreInACommand) {
  auto report = report_of(100 * kMillisecond);
  LinkTestSent sent;
  sent.arrived = 1'000'000'000;
  sent.warm = kSecond;
  sent.segments = 1;
  sent.congestion_control = "cubic";
  for (const char* wanted : {"bbr\"; evil", "$(evil)", "BBR", ""}) {
    sent.congestion_control_why = std::string("the system refused ") + wanted;
    report.to_peer = report.from_peer = {sent, {}};
    for (const auto& sentence : report.advice()) EXPECT_THAT(sentence, Not(HasSubstr("sysctl")));
  }
  sent.congestion_control_why = "the system refused bbr";
  report.from_peer = {sent, {}};
  for (const char* setting :
       {"$(evil) 16384 4194304", "4096 16384 4194304\" 1", "4096`evil` 1 2"}) {
    report.side_there.tcp_wmem = setting;
    const auto advice = report.advice();
    ASSERT_EQ(advice.size(), 1U) << setting;
    EXPECT_THAT(advice[0], HasSubstr("modprobe tcp_bbr; sysctl -w net.ipv4.tcp_allowed_congestion_"
                                     "control=\"$(sysctl -n net.ipv4.tcp_allowed_congestion_"
                                     "control) bbr\""));
  }
  report.side_there.tcp_wmem = "4096\t16384\t4194304";
  EXPECT_EQ(report.advice().size(), 2U) << "numbers as the kernel writes them";
}

// The rate limit went to an exchange.
TEST(LinkTestReport, WhatTooLittleCameToTellIsNoFigure) {
  auto report = report_of(kMillisecond);
  report.side_there.rate_limit = 3'000'000;
  const auto json = nlohmann::json::parse(report.to_json());
  for (const char* name : {"mbit_s", "loss", "bandwidth_delay_bytes"})
    EXPECT_TRUE(json["from_peer"][name].is_null()) << name;
  ASSERT_EQ(report.advice().size(), 2U);
  EXPECT_THAT(report.advice()[0], HasSubstr("from alpha too little came to tell"));
  EXPECT_THAT(
      report.advice()[1],
      HasSubstr("from beta too little came to tell: test for longer (--time), and while no"));
  // Nobody else took it.
  report.from_peer.got.unmeasured = Unmeasured::rising;
  EXPECT_EQ(report.advice()[1],
            "from beta the rate still rose at the end: test for longer (--time)");
}

TEST(LinkTestReport, WhatKeepsWindowsThroughPausesIsAdvisedWhereTheyAreLost) {
  LinkTestReport report;
  report.here = "alpha";
  report.there = "beta";
  report.side_here.narrows_in_pauses = true;
  report.round_trips = {100 * kMillisecond};
  report.to_peer.sent.segments = 1000;
  report.to_peer.sent.congestion_control = "cubic";
  report.to_peer.sent.connections = 8;
  report.to_peer.got = {.bits_per_second = 1e9, .warm = 2 * kSecond, .bytes = 1000};
  report.from_peer = report.to_peer;
  ASSERT_EQ(report.advice().size(), 1U) << "beta's kernel keeps them";
  EXPECT_THAT(report.advice()[0],
              HasSubstr("at alpha: sysctl -w net.ipv4.tcp_slow_start_after_idle=0 (in each pause "
                        "between outer steps cubic narrows its windows, and takes 7 round trips"));
  report.to_peer.sent.congestion_control = "bbr";
  EXPECT_TRUE(report.advice().empty());
  report.to_peer.sent.congestion_control = "cubic";
  report.to_peer.got.bits_per_second = 10e6;
  EXPECT_TRUE(report.advice().empty()) << "eight connections begin with as much";
}

TEST(LinkTestReport, TooSmallWindowsComeWithTheCommandThatRaisesThem) {
  LinkTestReport report;
  report.here = "alpha";
  report.there = "beta";
  report.side_here = {.tcp_rmem = "4096\t131072\t6291456", .tcp_wmem = "4096\t16384\t4194304"};
  report.side_there = {.tcp_rmem = "4096 131072 67108864", .tcp_wmem = "4096 16384 67108864"};
  report.round_trips = {100 * kMillisecond, 102 * kMillisecond, 160 * kMillisecond};
  LinkTestSent sent;
  sent.segments = 1000;
  sent.segments_resent = 5;
  sent.busy = 4 * kSecond;
  sent.congestion_control = "bbr";
  sent.congestion_control_why = "as asked for";
  report.to_peer = {sent, {.bits_per_second = 400e6, .warm = 2 * kSecond, .bytes = 1000}};
  report.from_peer = report.to_peer;
  // 5 MB on their way: alpha's 4 MiB send buffer and 6 MiB receive buffer are too small for that.
  const auto advice = report.advice();
  ASSERT_EQ(advice.size(), 2U);
  EXPECT_THAT(advice[0],
              HasSubstr("at alpha: sysctl -w net.ipv4.tcp_wmem=\"4096 16384 33554432\""));
  EXPECT_THAT(advice[1],
              HasSubstr("at alpha: sysctl -w net.ipv4.tcp_rmem=\"4096 131072 33554432\""));
  const auto json = nlohmann::json::parse(report.to_json());
  EXPECT_EQ(json["to_peer"]["loss"], 0.005);
  EXPECT_EQ(json["to_peer"]["connections"], 1);
  // Each of four carries a quarter of that.
  report.to_peer.sent.connections = report.from_peer.sent.connections = 4;
  EXPECT_TRUE(report.advice().empty());
  report.to_peer.sent.connections = report.from_peer.sent.connections = 1;
  EXPECT_EQ(json["to_peer"]["bandwidth_delay_bytes"], 5'000'000);
  EXPECT_EQ(json["round_trip_ms"]["median"], 102);
  EXPECT_EQ(json["advice"].size(), 2U);

  // Slower, but held back by the window: the line's own product is not known.
  report.side_there.tcp_rmem = report.side_here.tcp_rmem;
  report.to_peer.got.bits_per_second = report.from_peer.got.bits_per_second = 160e6;
  EXPECT_TRUE(report.advice().empty());
  report.to_peer.sent.limited_by_window = 2 * kSecond;
  ASSERT_EQ(report.advice().size(), 1U);
  EXPECT_THAT(report.advice()[0],
              HasSubstr("at beta: sysctl -w net.ipv4.tcp_rmem=\"4096 131072 16777216\" (the "
                        "receiver's window held the sender back 50 % of the time)"));
  // By far less than the window could hold: its reader was slow.
  report.to_peer.got.bits_per_second = 1e6;
  EXPECT_TRUE(report.advice().empty());
  report.to_peer.got.bits_per_second = 160e6;
  report.from_peer.sent.congestion_control = "cubic";
  report.from_peer.sent.congestion_control_why = "the system refused bbr";
  ASSERT_EQ(report.advice().size(), 2U);
  EXPECT_THAT(report.advice()[1], HasSubstr("at beta: the system refused bbr, cubic is in force"));
}

}  // namespace
}  // namespace isthmus::inter

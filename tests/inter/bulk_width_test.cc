// How many connections bulk uses, on lines of which it is known what they carry.
#include "inter/bulk_width.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

namespace isthmus::inter {
namespace {

constexpr std::uint32_t kChunk = 1 << 20;
constexpr std::uint64_t kMomentBytes = 64 * kChunk;

class BulkWidthTest : public testing::Test {
 protected:
  // For so many seconds chunks arrive as fast as the line carries them over so many connections.
  void send(double seconds, const std::function<double(std::uint32_t)>& bytes_per_second) {
    const auto end = now_ + static_cast<Nanoseconds>(seconds * 1e9);
    width_.full(now_, true);
    while (now_ < end) {
      now_ += static_cast<Nanoseconds>(kChunk / bytes_per_second(width_.wanted()) * 1e9);
      width_.arrived(now_, kChunk, width_.wanted(), 100 * kMillisecond);
    }
    width_.full(now_, false);
  }

  // What TCP did in one more second in which there was something to send.
  void tcp_says(const BulkTotals& more) {
    width_.full(now_, true);
    width_.full(now_ += kSecond, false);
    say(more);
  }
  void say(const BulkTotals& more) {
    totals_.acknowledged_bytes += more.acknowledged_bytes;
    totals_.resent_bytes += more.resent_bytes;
    totals_.busy += more.busy;
    totals_.limited += more.limited;
    totals_.round_trip_min = more.round_trip_min;
    width_.carried(now_, totals_);
  }
  BulkTotals lossy(Nanoseconds round_trip_min) {
    return {.acknowledged_bytes = kMomentBytes,
            .resent_bytes = kMomentBytes / 1000,
            .busy = kSecond,
            .round_trip_min = round_trip_min};
  }

  BulkTotals totals_;
  BulkWidth width_{128};
  Nanoseconds now_ = kSecond;
};

TEST_F(BulkWidthTest, NoMoreThanServeTheCongestionControl) {
  send(100, [](std::uint32_t n) { return 1e6 * n; });
  EXPECT_EQ(width_.wanted(), 1U);
  EXPECT_EQ(width_.why(), "a polite gateway needs no more");
  width_.widen_to(BulkWidth::Most::some);
  send(100, [](std::uint32_t n) { return 1e6 * n; });
  EXPECT_EQ(width_.wanted(), BulkWidth::kSome);
  EXPECT_EQ(width_.why(), "bbr needs no more");
  EXPECT_EQ(width_.enough(), BulkWidth::kSome);
  BulkWidth limited(2);
  limited.widen_to(BulkWidth::Most::many);
  EXPECT_EQ(limited.wanted(), 2U);
  EXPECT_EQ(limited.why(), "the lower limit of both sites");
  limited.limit_to(128);
  EXPECT_EQ(limited.why(), "each loss narrows a window without bbr");
}

TEST_F(BulkWidthTest, AWideLineHasMoreOfThemUnderBbr) {
  width_.widen_to(BulkWidth::Most::some);
  const auto carry = [&](BulkWidth& width, std::uint64_t bytes_per_second) {
    width.full(now_, true);
    now_ += kSecond;
    totals_.acknowledged_bytes += bytes_per_second;
    totals_.busy += kSecond;
    totals_.round_trip_min = 100 * kMillisecond;
    width.carried(now_, totals_);
  };
  carry(width_, 12'500'000);
  EXPECT_EQ(width_.wanted(), BulkWidth::kSome) << "1.25 MB are on their way";
  carry(width_, 125'000'000);
  EXPECT_EQ(width_.wanted(), BulkWidth::kSomeOfWide);
  EXPECT_EQ(width_.why(), "bbr needs no more, on a wide line");
  EXPECT_EQ(width_.enough(), BulkWidth::kSomeOfWide);
  carry(width_, 12'500'000);
  EXPECT_EQ(width_.wanted(), BulkWidth::kSomeOfWide);
  BulkWidth limited(5);
  limited.widen_to(BulkWidth::Most::some);
  carry(limited, 125'000'000);
  EXPECT_EQ(limited.wanted(), 5U);
  EXPECT_EQ(limited.why(), "the lower limit of both sites");
  width_.widen_to(BulkWidth::Most::one);
  carry(width_, 125'000'000);
  EXPECT_EQ(width_.wanted(), 1U) << "a polite one";
}

// 0.1 % loss at 100 ms: each connection of cubic carries a hundredth of the line.
TEST_F(BulkWidthTest, GrowsToTheLimitWhereEachConnectionCarriesLittle) {
  width_.widen_to(BulkWidth::Most::many);
  EXPECT_EQ(width_.wanted(), BulkWidth::kManyAtFirst);
  EXPECT_EQ(width_.why(), "each loss narrows a window without bbr");
  send(20, [](std::uint32_t n) { return 1e6 * n; });
  EXPECT_EQ(width_.wanted(), 128U);
  EXPECT_EQ(width_.enough(), 128U);
  EXPECT_EQ(width_.why(), "the lower limit of both sites");
}

TEST_F(BulkWidthTest, StopsWhereMoreConnectionsCarryNoMore) {
  width_.widen_to(BulkWidth::Most::many);
  send(60, [](std::uint32_t n) { return std::min(5e7, 1e6 * n); });
  EXPECT_EQ(width_.wanted(), 128U) << "64 carry 50 instead of 32, 128 no more than those";
  width_.widen_to(BulkWidth::Most::some);
  width_.widen_to(BulkWidth::Most::many);
  send(60, [](std::uint32_t n) { return std::min(2e7, 1e6 * n); });
  EXPECT_EQ(width_.wanted(), 64U) << "32 carry 20 instead of 16";
  EXPECT_EQ(width_.why(), "more were no faster");
}

// Windows that neither losses nor limits hold down will fill the line, or do.
TEST_F(BulkWidthTest, DoesNotGrowWhereNothingKeepsWindowsNarrow) {
  width_.widen_to(BulkWidth::Most::many);
  for (const auto shortest : {100, 70}) {
    tcp_says({.acknowledged_bytes = kMomentBytes,
              .busy = kSecond,
              .round_trip_min = shortest * kMillisecond});
    send(60, [](std::uint32_t n) { return 1e6 * n; });
    EXPECT_EQ(width_.wanted(), BulkWidth::kManyAtFirst) << shortest;
  }
  EXPECT_EQ(width_.why(), "these fill the line") << "there is a queue";
}

TEST_F(BulkWidthTest, GrowsWhereTheKernelsLimitsKeepWindowsNarrow) {
  width_.widen_to(BulkWidth::Most::many);
  tcp_says({.acknowledged_bytes = kMomentBytes,
            .busy = kSecond,
            .limited = kSecond / 2,
            .round_trip_min = 100 * kMillisecond});
  send(3, [](std::uint32_t n) { return 1e6 * n; });
  EXPECT_EQ(width_.wanted(), 2 * BulkWidth::kManyAtFirst);
  EXPECT_EQ(width_.why(), "the kernel's limits keep windows narrow");
  send(60, [](std::uint32_t n) { return 1e6 * n; });
  EXPECT_EQ(width_.wanted(), 128U);
}

TEST_F(BulkWidthTest, LooksAgainAfterAWhile) {
  width_.widen_to(BulkWidth::Most::many);
  send(60, [](std::uint32_t n) { return std::min(1.6e7, 1e6 * n); });
  EXPECT_EQ(width_.wanted(), 32U);
  send(400, [](std::uint32_t n) { return 1e6 * n; });
  EXPECT_EQ(width_.wanted(), 128U);
}

// New connections start wide; then each loss narrows one. More of them than at first did not help.
TEST_F(BulkWidthTest, GrowsAgainWhereLossesHaveNarrowedWindows) {
  width_.widen_to(BulkWidth::Most::many);
  tcp_says(lossy(100 * kMillisecond));
  send(1.2, [](std::uint32_t) { return 7e7; });
  EXPECT_EQ(width_.why(), "losses keep windows narrow");
  send(20, [](std::uint32_t) { return 7e7; });
  EXPECT_EQ(width_.wanted(), 32U) << "what carries no more is tried twice, without a queue";
  send(20, [](std::uint32_t n) { return 5e5 * n; });
  EXPECT_EQ(width_.wanted(), 128U);
}

TEST_F(BulkWidthTest, TriesOnceMoreWhereTheLineIsMuchSlowerAndFull) {
  width_.widen_to(BulkWidth::Most::many);
  tcp_says(lossy(100 * kMillisecond));
  send(20, [](std::uint32_t) { return 7e7; });
  ASSERT_EQ(width_.wanted(), 32U);
  tcp_says(lossy(70 * kMillisecond));
  send(20, [](std::uint32_t) { return 5.6e7; });
  EXPECT_EQ(width_.wanted(), 32U) << "a little slower";
  send(60, [](std::uint32_t) { return 1.6e7; });
  EXPECT_EQ(width_.wanted(), 64U);
}

// An exchange that is over soon says as much as a part of a longer one.
TEST_F(BulkWidthTest, LearnsFromManyShortExchangesToo) {
  width_.widen_to(BulkWidth::Most::many);
  for (int exchange = 0; exchange < 100; ++exchange) {
    send(0.3, [](std::uint32_t n) { return 4e6 * n; });
    now_ += 10 * kSecond;
  }
  EXPECT_EQ(width_.wanted(), 128U);
}

// Connections that do not come are not waited for with what is there.
TEST_F(BulkWidthTest, MeasuresOnlyWithTheConnectionsThatItWants) {
  width_.widen_to(BulkWidth::Most::many);
  width_.full(now_, true);
  for (int chunk = 0; chunk < 1000; ++chunk)
    width_.arrived(now_ += 10 * kMillisecond, kChunk, 2, 100 * kMillisecond);
  EXPECT_EQ(width_.wanted(), BulkWidth::kManyAtFirst);
}

// 1 Mbit/s at 100 ms has two windows of four packets on their way; 10 Mbit/s has twenty.
TEST_F(BulkWidthTest, UsesNoMoreThanAThinLineHasWindowsFor) {
  const auto carry = [&](std::uint64_t bytes_per_second, Nanoseconds full, Nanoseconds busy = 0) {
    width_.full(now_, true);
    width_.full(now_ += full, false);
    now_ += kSecond - full;
    say({.acknowledged_bytes = bytes_per_second,
         .busy = busy,
         .round_trip_min = 100 * kMillisecond});
  };
  width_.widen_to(BulkWidth::Most::many);
  carry(125'000, 0);
  EXPECT_EQ(width_.enough(), BulkWidth::kManyAtFirst) << "who sends little tells nothing of it";
  carry(125'000, kSecond);
  EXPECT_EQ(width_.enough(), BulkWidth::kLossyMin);
  carry(450'000, kSecond);
  EXPECT_EQ(width_.enough(), 7U) << "the line has become another one";
  width_.widen_to(BulkWidth::Most::some);
  EXPECT_EQ(width_.enough(), BulkWidth::kSome);
  carry(1'250'000, kSecond);
  EXPECT_EQ(width_.enough(), 2U) << "connections under BBR crowd each other sooner";
  carry(125'000, kSecond);
  EXPECT_EQ(width_.enough(), 1U) << "and lose nothing alone";
  carry(0, kSecond);
  EXPECT_EQ(width_.enough(), 1U);
  carry(600'000, 100 * kMillisecond);
  EXPECT_EQ(width_.enough(), BulkWidth::kSome) << "a burst may tell of more, and never of less";
  carry(10'000, 100 * kMillisecond);
  EXPECT_EQ(width_.enough(), BulkWidth::kSome);
  carry(125'000, kSecond);
  carry(125'000, 10 * kMillisecond, kSecond);
  EXPECT_EQ(width_.enough(), 1U) << "the kernel sent for longer than there was something to send";
  carry(600'000, 100 * kMillisecond);
  carry(125'000, kSecond);
  width_.begin();
  EXPECT_EQ(width_.enough(), BulkWidth::kSome) << "another session";
  width_.widen_to(BulkWidth::Most::many);
  send(300, [](std::uint32_t) { return 1.25e5; });
  EXPECT_EQ(width_.wanted(), BulkWidth::kManyAtFirst) << "more would have no use";
  tcp_says(lossy(100 * kMillisecond));
  send(300, [](std::uint32_t) { return 1.25e5; });
  EXPECT_EQ(width_.wanted(), BulkWidth::kManyAtFirst);
  EXPECT_EQ(width_.why(), "more would have windows of a few packets");
}

// ~0 would mean no pace, and no spreading.
TEST(TcpFacts, AnInfinitePaceIsOneToTheKernel) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(descriptor, 0);
  const auto pace = [&] {
    unsigned long value = 0;
    socklen_t size = sizeof value;
    EXPECT_EQ(::getsockopt(descriptor, SOL_SOCKET, SO_MAX_PACING_RATE, &value, &size), 0);
    return value;
  };
  set_pace_max(descriptor, kSpread);
  EXPECT_GT(pace(), 1'000'000'000'000UL);
  EXPECT_LT(pace(), ~0UL);
  set_pace_max(descriptor, 5e6);
  EXPECT_EQ(pace(), 5'000'000UL);
  set_pace_max(descriptor, std::nullopt);
  EXPECT_EQ(pace(), ~0UL);
  ::close(descriptor);
}

TEST(TcpFacts, TimeForIsOneRoundTripAtLeastAndOneForEachWindow) {
  TcpFacts tcp;
  tcp.round_trip = 100 * kMillisecond;
  tcp.window_bytes = 1000;
  EXPECT_EQ(tcp.time_for(0), 100 * kMillisecond);
  EXPECT_EQ(tcp.time_for(1000), 100 * kMillisecond);
  EXPECT_EQ(tcp.time_for(7000), 700 * kMillisecond);
  tcp.slow_start = true;
  EXPECT_EQ(tcp.time_for(7000), 300 * kMillisecond) << "1000, 2000, 4000";
}

}  // namespace
}  // namespace isthmus::inter

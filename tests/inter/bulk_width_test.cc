// How many connections bulk uses, on lines of which it is known what they carry.
#include "inter/bulk_width.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace isthmus::inter {
namespace {

constexpr std::uint32_t kChunk = 1 << 20;

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

  BulkWidth width_{64};
  Nanoseconds now_ = kSecond;
};

TEST_F(BulkWidthTest, OneWhereOneSuffices) {
  send(100, [](std::uint32_t) { return 1e8; });
  EXPECT_EQ(width_.wanted(), 1U);
}

// 0.1 % loss at 100 ms: each connection of cubic carries a hundredth of the line.
TEST_F(BulkWidthTest, GrowsToTheLimitWhereEachConnectionCarriesLittle) {
  width_.may_grow(true);
  EXPECT_EQ(width_.wanted(), 4U);
  send(20, [](std::uint32_t n) { return 1e6 * n; });
  EXPECT_EQ(width_.wanted(), 64U);
}

TEST_F(BulkWidthTest, StopsWhereMoreConnectionsCarryNoMore) {
  width_.may_grow(true);
  send(60, [](std::uint32_t n) { return std::min(1e7, 1e6 * n); });
  EXPECT_EQ(width_.wanted(), 32U) << "16 carry 10 instead of 8, 32 no more than those";
}

TEST_F(BulkWidthTest, LooksAgainAfterAWhile) {
  width_.may_grow(true);
  send(60, [](std::uint32_t n) { return std::min(4e6, 1e6 * n); });
  EXPECT_EQ(width_.wanted(), 8U);
  send(400, [](std::uint32_t n) { return 1e6 * n; });
  EXPECT_EQ(width_.wanted(), 64U);
}

// An exchange that is over soon says as much as a part of a longer one.
TEST_F(BulkWidthTest, LearnsFromManyShortExchangesToo) {
  width_.may_grow(true);
  for (int exchange = 0; exchange < 100; ++exchange) {
    send(0.3, [](std::uint32_t n) { return 4e6 * n; });
    now_ += 10 * kSecond;
  }
  EXPECT_EQ(width_.wanted(), 64U);
}

// Connections that do not come are not waited for with what is there.
TEST_F(BulkWidthTest, MeasuresOnlyWithTheConnectionsThatItWants) {
  width_.may_grow(true);
  width_.full(now_, true);
  for (int chunk = 0; chunk < 1000; ++chunk)
    width_.arrived(now_ += 10 * kMillisecond, kChunk, 2, 100 * kMillisecond);
  EXPECT_EQ(width_.wanted(), 4U);
}

}  // namespace
}  // namespace isthmus::inter

#include "inter/bulk_arrivals.h"

#include <gtest/gtest.h>

namespace isthmus::inter {
namespace {

constexpr double kChunkBytes = 250e3, kAtOnce = 4;
constexpr Nanoseconds kPauseMin = 6 * kSecond;

class BulkArrivalsTest : public testing::Test {
 protected:
  void bring(double bytes_per_second, int seconds) {
    for (int i = 0; i < 2 * seconds; ++i) {
      now_ += kSecond / 2;
      bytes_ += static_cast<std::uint64_t>(bytes_per_second / 2);
      arrivals_.note_bytes(now_, bytes_);
    }
  }
  bool come() const { return arrivals_.come(now_, kChunkBytes, kAtOnce, kPauseMin); }

  BulkArrivals arrivals_;
  Nanoseconds now_ = 1000 * kSecond;
  std::uint64_t bytes_ = 1 << 20;  // from before
};

TEST_F(BulkArrivalsTest, NothingComesThatNobodyWaitsFor) {
  arrivals_.note_bytes(now_, bytes_);
  now_ += 100 * kSecond;
  EXPECT_FALSE(come());
}

TEST_F(BulkArrivalsTest, BytesAreEnoughOnAThinLine) {
  arrivals_.note_bytes(now_, bytes_);
  arrivals_.expect(now_);
  bring(5e3, 100);
  EXPECT_TRUE(come());
  // A chunk takes 50 s there.
  bring(0, 49);
  EXPECT_TRUE(come());
  bring(0, 2);
  EXPECT_FALSE(come());
  bring(5e3, 1);
  EXPECT_TRUE(come());
}

TEST_F(BulkArrivalsTest, AFastLineThatFallsSilentIsSilentSoon) {
  arrivals_.note_bytes(now_, bytes_);
  arrivals_.expect(now_);
  bring(1e6, 1);
  EXPECT_TRUE(come());
  bring(0, 5);
  EXPECT_TRUE(come());
  bring(0, 1);
  EXPECT_FALSE(come());
}

TEST_F(BulkArrivalsTest, WhoDripsIsNoThinLine) {
  arrivals_.note_bytes(now_, bytes_);
  arrivals_.expect(now_);
  bring(100, 300);
  EXPECT_FALSE(come());
}

// The wire counts what comes before anybody knows what it is.
TEST_F(BulkArrivalsTest, WhatWasOfNoChunkIsTakenBack) {
  arrivals_.note_bytes(now_, bytes_);
  arrivals_.expect(now_);
  for (int i = 0; i < 300; ++i) {
    bring(5e3, 1);
    bytes_ -= 5000;
    arrivals_.note_bytes(now_, bytes_);
  }
  EXPECT_FALSE(come());
  bring(5e3, 200);
  EXPECT_TRUE(come());
}

TEST_F(BulkArrivalsTest, MoreThanMayBeOnItsWayIsNoChunk) {
  arrivals_.note_bytes(now_, bytes_);
  arrivals_.expect(now_);
  bring(50e3, 24);
  EXPECT_TRUE(come());
  bring(50e3, 2);
  EXPECT_FALSE(come()) << "more than five chunks, and none whole";
  arrivals_.expect(now_);
  bring(50e3, 2);
  EXPECT_TRUE(come());
}

}  // namespace
}  // namespace isthmus::inter

// What all connections of the bulk lane share: the rate limit, and what the kernel may hold unsent.
#include "inter/tls_lane.h"

#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/inter/link_world.h"

namespace isthmus::inter {
namespace {

class TlsLaneTest : public testing::Test {
 protected:
  static constexpr double kRate = 1e6;
  static constexpr std::size_t kRecord = 1 << 14;

  void SetUp() override {
    simulation_.advance(100 * kSecond);
    options_.identity = &identity_;
    auto made = TlsLane::make(loop_, log_.log, options_, congestion_);
    ASSERT_TRUE(made) << made.error().text();
    lane_ = std::move(*made);
  }
  static Nanoseconds cost(std::size_t bytes) { return RateLimit(kRate).cost(bytes); }

  sim::Simulation simulation_;
  RecordedLog log_{simulation_, "alpha"};
  Loop loop_{simulation_};
  const security::Identity identity_ = security::Identity::generate();
  ZmqWireOptions options_;
  CongestionControl congestion_{log_.log, ""};
  std::unique_ptr<TlsLane> lane_;
};

TEST_F(TlsLaneTest, WhatTlsAddsIsPaidFor) {
  lane_->limit(kRate);
  auto before = lane_->next_piece(1 << 20);
  EXPECT_EQ(before.bytes, kRecord);
  for (int i = 0; i < 100; ++i) {
    const auto piece = lane_->next_piece(1 << 20);
    EXPECT_EQ(piece.bytes, kRecord);
    // To the nanosecond that each of the two costs is rounded to.
    EXPECT_NEAR(static_cast<double>(piece.leaves - before.leaves),
                static_cast<double>(cost(kRecord + security::kTlsRecordOverhead)), 2);
    before = piece;
  }
}

TEST_F(TlsLaneTest, WhatLeftOnTheControlLaneIsPaidFor) {
  lane_->limit(kRate);
  const auto before = lane_->next_piece(1 << 20);
  lane_->pay(50'000);
  const auto piece = lane_->next_piece(1 << 20);
  EXPECT_NEAR(static_cast<double>(piece.leaves - before.leaves),
              static_cast<double>(cost(kRecord + security::kTlsRecordOverhead + 50'000)), 3);
}

TEST_F(TlsLaneTest, WithoutALimitNothingWaits) {
  lane_->pay(50'000);
  for (int i = 0; i < 3; ++i) {
    const auto piece = lane_->next_piece(1 << 20);
    EXPECT_LE(piece.leaves, simulation_.now());
    EXPECT_EQ(piece.bytes, security::kTlsRecordBytesMax);
  }
}

// What it holds unsent would leave after a lower limit, or an older step, has come.
TEST_F(TlsLaneTest, BelowALimitTheKernelHoldsLessUnsent) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto unsent = [&](std::uint32_t connections) {
    lane_->share_unsent(descriptor, connections);
    int bytes = 0;
    socklen_t size = sizeof bytes;
    EXPECT_EQ(::getsockopt(descriptor, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, &size), 0);
    return bytes;
  };
  EXPECT_EQ(unsent(1), 1 << 20);
  EXPECT_EQ(unsent(4), 1 << 18);
  EXPECT_EQ(unsent(100), 1 << 16);
  lane_->limit(kRate);
  EXPECT_EQ(unsent(1), 50'000) << "of 50 ms";
  EXPECT_EQ(unsent(4), 1 << 14) << "a record at least";
  lane_->limit(0);
  EXPECT_EQ(unsent(4), 1 << 18);
  ::close(descriptor);
}

}  // namespace
}  // namespace isthmus::inter

#include "tests/wan/super_packet.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/random.h"
#include "tests/wan/sample_packets.h"

namespace isthmus::wan {
namespace {

constexpr std::size_t kSegmentBytes = 1448;
constexpr std::size_t kHeaders = 20 + 32;
constexpr std::size_t kSegments = 10;
constexpr std::size_t kPayload = 9 * kSegmentBytes + 100;  // the last segment is short

constexpr std::uint8_t kFinPushAckCwr = 0x01 | 0x08 | 0x10 | 0x80;

class SuperPacketOfTen : public testing::Test {
 protected:
  Bytes cut(std::size_t first, std::size_t last) const { return super_packet_.cut(first, last); }
  static std::span<const std::uint8_t> tcp(const Bytes& packet) {
    return std::span(packet).subspan(kVirtioBytes + 20);
  }

  const Bytes payload_ = sample_payload(kPayload);
  const TcpSample sample_{.flags = kFinPushAckCwr};
  const Bytes packet_ = tcp_packet(payload_, sample_);
  const SuperPacket super_packet_{packet_, *layout_of(packet_)};
};

TEST_F(SuperPacketOfTen, HasSegmentsOfWireSize) {
  ASSERT_EQ(super_packet_.segments(), kSegments);
  for (std::size_t i = 0; i < 9; ++i)
    EXPECT_EQ(super_packet_.wire_bytes(i), kHeaders + kSegmentBytes);
  EXPECT_EQ(super_packet_.wire_bytes(9), kHeaders + 100);
}

TEST_F(SuperPacketOfTen, CutsReassembleToTheSameBytes) {
  Random random(3);
  for (int repeat = 0; repeat < 50; ++repeat) {
    Bytes reassembled;
    for (std::size_t first = 0; first < kSegments;) {
      const auto last = first + 1 + random.below(kSegments - first);
      const auto run = cut(first, last);
      EXPECT_EQ(get32(tcp(run), 4),
                sample_.sequence + static_cast<std::uint32_t>(reassembled.size()));
      reassembled.insert(reassembled.end(), run.begin() + kVirtioBytes + kHeaders, run.end());
      first = last;
    }
    EXPECT_EQ(reassembled, payload_);
  }
}

TEST_F(SuperPacketOfTen, AllOfItIsItself) { EXPECT_EQ(cut(0, kSegments), packet_); }

TEST_F(SuperPacketOfTen, EachRunSaysItsLengthAndNumber) {
  for (std::size_t first = 0; first < kSegments; ++first)
    for (std::size_t last = first + 1; last <= kSegments; ++last) {
      const auto run = cut(first, last);
      const auto ip = std::span(run).subspan(kVirtioBytes);
      EXPECT_EQ(get16(ip, 2), ip.size());
      EXPECT_EQ(get16(ip, 4), static_cast<std::uint16_t>(0xfffe + first));
      EXPECT_TRUE(ip_checksum_is_right(run));
    }
}

TEST_F(SuperPacketOfTen, OnlyTheEndsHaveTheirFlags) {
  EXPECT_EQ(tcp(cut(0, 1))[13], 0x90);   // ACK, and CWR of the first
  EXPECT_EQ(tcp(cut(4, 6))[13], 0x10);   // ACK
  EXPECT_EQ(tcp(cut(9, 10))[13], 0x19);  // ACK, and FIN and PSH of the last
}

TEST_F(SuperPacketOfTen, ChecksumsOfSegmentsAreRightOnceTheKernelHasFinishedThem) {
  for (std::size_t i = 0; i < kSegments; ++i) {
    auto segment = cut(i, i + 1);
    const auto header = virtio_header_of(segment);
    EXPECT_EQ(header.flags, kChecksumUnfinished);
    EXPECT_EQ(header.segmentation, kNoSegmentation);
    EXPECT_FALSE(tcp_checksum_is_right(segment));  // else this test proves nothing
    finish_checksum(segment);
    EXPECT_TRUE(tcp_checksum_is_right(segment)) << i;
    segment[kVirtioBytes + kHeaders + 50] ^= 4;
    EXPECT_FALSE(tcp_checksum_is_right(segment));
  }
}

// The kernel segments a run as it would have segmented the whole.
TEST_F(SuperPacketOfTen, ARunIsASuperPacketOfItsSegments) {
  const auto run = cut(3, 10);
  const auto header = virtio_header_of(run);
  EXPECT_EQ(header.segmentation, kTcp4Segmentation);
  EXPECT_EQ(header.segment_bytes, kSegmentBytes);
  EXPECT_EQ(header.header_bytes, kHeaders);
  const SuperPacket again(run, *layout_of(run));
  ASSERT_EQ(again.segments(), 7u);
  for (std::size_t i = 0; i < 7; ++i) EXPECT_EQ(again.cut(i, i + 1), cut(3 + i, 4 + i)) << i;
}

TEST_F(SuperPacketOfTen, PayloadOfASegmentInARun) {
  auto run = cut(3, 10);
  const auto segment = super_packet_.payload(run, 3, 9);
  EXPECT_TRUE(std::equal(segment.begin(), segment.end(), payload_.begin() + 9 * kSegmentBytes,
                         payload_.end()));
}

TEST(SuperPacket, APacketWithoutSegmentationIsOneSegment) {
  for (const auto& packet :
       {udp_packet(sample_payload(1400)), tcp_packet(sample_payload(1448)), tcp_packet({})}) {
    const SuperPacket one(packet, *layout_of(packet));
    EXPECT_EQ(one.segments(), 1u);
    EXPECT_EQ(one.wire_bytes(0), packet.size() - kVirtioBytes);
    EXPECT_EQ(one.cut(0, 1), packet);
  }
}

}  // namespace
}  // namespace isthmus::wan

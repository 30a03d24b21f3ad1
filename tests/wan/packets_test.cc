#include "tests/wan/packets.h"

#include <gtest/gtest.h>
#include <netinet/in.h>

#include "base/random.h"
#include "tests/wan/router.h"
#include "tests/wan/sample_packets.h"
#include "tests/wan/super_packet.h"

namespace isthmus::wan {
namespace {

TEST(Packets, LayoutOfTcpAndUdp) {
  const auto tcp = layout_of(tcp_packet(sample_payload(100)));
  ASSERT_TRUE(tcp);
  EXPECT_EQ(tcp->destination, kNetworkAddress + 2);
  EXPECT_EQ(tcp->protocol, IPPROTO_TCP);
  EXPECT_EQ(tcp->transport, kVirtioBytes + 20);
  EXPECT_EQ(tcp->payload, kVirtioBytes + 20 + 32);
  const auto udp = layout_of(udp_packet(sample_payload(100)));
  ASSERT_TRUE(udp);
  EXPECT_EQ(udp->payload, kVirtioBytes + 20 + 8);
}

TEST(Packets, AnotherProtocolIsAllPayload) {
  auto packet = udp_packet(sample_payload(100));
  packet[kVirtioBytes + 9] = IPPROTO_ICMP;
  const auto layout = layout_of(packet);
  ASSERT_TRUE(layout);
  EXPECT_EQ(layout->payload, layout->transport);
}

TEST(Packets, ALaterFragmentHasNoTransportHeader) {
  auto packet = udp_packet(sample_payload(100));
  packet[kVirtioBytes + 7] = 1;  // fragment offset
  const auto layout = layout_of(packet);
  ASSERT_TRUE(layout);
  EXPECT_EQ(layout->payload, layout->transport);
}

TEST(Packets, HeadersThatAreNotWholeAreRefused) {
  for (const auto& packet : {tcp_packet({}), udp_packet({})}) {
    EXPECT_TRUE(layout_of(packet));
    for (std::size_t bytes = 0; bytes < packet.size(); ++bytes)
      EXPECT_FALSE(layout_of(std::span(packet).first(bytes))) << bytes;
  }
}

TEST(Packets, LengthsThatLieAreRefused) {
  const auto refused = [](Bytes packet, std::size_t offset, std::uint8_t value) {
    packet[kVirtioBytes + offset] = value;
    return !layout_of(packet);
  };
  const auto udp = udp_packet(sample_payload(4));
  EXPECT_TRUE(refused(udp, 0, 0x65));  // version 6
  EXPECT_TRUE(refused(udp, 0, 0x44));  // an IPv4 header of 16 bytes
  EXPECT_TRUE(refused(udp, 0, 0x4f));  // of 60
  const auto tcp = tcp_packet(sample_payload(4));
  EXPECT_TRUE(refused(tcp, 20 + 12, 0x40));  // a TCP header of 16 bytes
  EXPECT_TRUE(refused(tcp, 20 + 12, 0xf0));  // of 60
}

// Whoever has a raw socket can send anything: nothing may be read or written out of bounds, which
// the sanitizers see, and what is cut has the bytes that its segments say.
TEST(Packets, RandomBytesDoNoHarm) {
  Random random(11);
  std::size_t super_packets = 0;
  for (int i = 0; i < 20'000; ++i) {
    auto packet = tcp_packet(sample_payload(random.below(4000)), {.segment_bytes = 500});
    for (int flips = 0; flips < 3; ++flips)
      packet[random.below(kVirtioBytes + 20 + 32)] = static_cast<std::uint8_t>(random.next());
    packet.resize(kVirtioBytes + random.below(packet.size() - kVirtioBytes + 1));
    const auto layout = layout_of(packet);
    if (!layout) continue;
    const SuperPacket super_packet(packet, *layout);
    const auto segments = super_packet.segments();
    super_packets += segments > 1;
    std::size_t bytes = 0;
    for (std::size_t segment = 0; segment < segments; ++segment) {
      const auto cut = super_packet.cut(segment, segment + 1);
      ASSERT_EQ(cut.size() - kVirtioBytes, super_packet.wire_bytes(segment));
      bytes += cut.size() - layout->payload;
    }
    ASSERT_EQ(bytes, packet.size() - layout->payload);
  }
  EXPECT_GT(super_packets, 1000u);
}

}  // namespace
}  // namespace isthmus::wan

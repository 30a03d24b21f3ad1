// Packets as the kernel hands them to the emulator, and the Internet checksum (RFC 1071), computed
// in another way than the emulator does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace isthmus::wan {

using Bytes = std::vector<std::uint8_t>;

// Bytes that differ from place to place.
Bytes sample_payload(std::size_t bytes);

struct TcpSample {
  std::size_t from = 0;
  std::size_t to = 1;
  std::uint32_t sequence = 0xfffffe00;  // wraps within the packet
  std::uint8_t flags = 0x10;            // ACK
  std::size_t segment_bytes = 1448;     // of payload; more than that is a super packet
};
// With 12 bytes of TCP options, as Linux has them.
Bytes tcp_packet(std::span<const std::uint8_t> payload, const TcpSample& sample = {});

Bytes udp_packet(std::span<const std::uint8_t> payload, std::size_t from = 0, std::size_t to = 1);

// The sum over all bytes, folded: 0xffff when a checksum among them is right.
std::uint16_t internet_sum(std::span<const std::uint8_t> bytes);

// What the kernel does before a packet without segmentation leaves: completes the checksum.
void finish_checksum(Bytes& packet);
// What a receiver would find.
bool ip_checksum_is_right(std::span<const std::uint8_t> packet);
bool tcp_checksum_is_right(std::span<const std::uint8_t> packet);

}  // namespace isthmus::wan

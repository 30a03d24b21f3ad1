#include "tests/wan/packets.h"

#include <netinet/in.h>

#include <cstring>

#include "base/assert.h"

namespace isthmus::wan {

namespace {

constexpr std::size_t kIpv4Bytes = 20;
constexpr std::size_t kTcpBytes = 20;
constexpr std::size_t kUdpBytes = 8;
constexpr std::uint16_t kFragmentOffset = 0x1fff;

// Of the transport's header at `transport`; nothing if it is not whole.
std::optional<std::size_t> transport_bytes(std::span<const std::uint8_t> packet,
                                           std::uint8_t protocol, std::size_t transport) {
  const auto rest = packet.size() - transport;
  if (protocol == IPPROTO_UDP) return rest < kUdpBytes ? std::nullopt : std::optional(kUdpBytes);
  if (protocol != IPPROTO_TCP) return 0;
  if (rest < kTcpBytes) return std::nullopt;
  const std::size_t bytes = (packet[transport + 12] >> 4) * 4u;
  return bytes < kTcpBytes || bytes > rest ? std::nullopt : std::optional(bytes);
}

}  // namespace

VirtioHeader virtio_header_of(std::span<const std::uint8_t> packet) {
  ISTHMUS_ASSERT(packet.size() >= kVirtioBytes);
  VirtioHeader header;
  std::memcpy(&header, packet.data(), kVirtioBytes);
  return header;
}

void set_virtio_header(std::span<std::uint8_t> packet, const VirtioHeader& header) {
  ISTHMUS_ASSERT(packet.size() >= kVirtioBytes);
  std::memcpy(packet.data(), &header, kVirtioBytes);
}

std::uint16_t get16(std::span<const std::uint8_t> bytes, std::size_t offset) {
  return static_cast<std::uint16_t>(bytes[offset] << 8 | bytes[offset + 1]);
}

std::uint32_t get32(std::span<const std::uint8_t> bytes, std::size_t offset) {
  return std::uint32_t{get16(bytes, offset)} << 16 | get16(bytes, offset + 2);
}

void put16(std::span<std::uint8_t> bytes, std::size_t offset, std::uint16_t value) {
  bytes[offset] = static_cast<std::uint8_t>(value >> 8);
  bytes[offset + 1] = static_cast<std::uint8_t>(value);
}

void put32(std::span<std::uint8_t> bytes, std::size_t offset, std::uint32_t value) {
  put16(bytes, offset, static_cast<std::uint16_t>(value >> 16));
  put16(bytes, offset + 2, static_cast<std::uint16_t>(value));
}

std::optional<PacketLayout> layout_of(std::span<const std::uint8_t> packet) {
  if (packet.size() < kVirtioBytes + kIpv4Bytes) return std::nullopt;
  const auto ip = packet.subspan(kVirtioBytes);
  const std::size_t ip_header = (ip[0] & 15) * 4u;
  if (ip[0] >> 4 != 4 || ip_header < kIpv4Bytes || ip_header > ip.size()) return std::nullopt;
  PacketLayout layout{get32(ip, 16), ip[9], kVirtioBytes + ip_header, kVirtioBytes + ip_header};
  if ((get16(ip, 6) & kFragmentOffset) != 0) return layout;  // the transport's header came earlier
  const auto header = transport_bytes(packet, layout.protocol, layout.transport);
  if (!header) return std::nullopt;
  layout.payload += *header;
  return layout;
}

}  // namespace isthmus::wan

// Packets as a TUN device with offloads gives and takes them: a virtio header, then IPv4. Here are
// the layout and what the emulator reads of it; what it does with a packet is in router.h, and
// super packets in super_packet.h.
//
// Whoever has a raw socket at a site can send anything: no length in a packet is trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace isthmus::wan {

// struct virtio_net_hdr of linux/virtio_net.h, which is no valid C++. In the machine's byte order.
struct VirtioHeader {
  std::uint8_t flags;
  std::uint8_t segmentation;
  std::uint16_t header_bytes;
  std::uint16_t segment_bytes;   // of payload
  std::uint16_t checksum_start;  // after this header
  std::uint16_t checksum_offset;
};
inline constexpr std::size_t kVirtioBytes = 10;
static_assert(sizeof(VirtioHeader) == kVirtioBytes);

// The checksum field holds the sum of the pseudo header; who transmits the packet completes it.
inline constexpr std::uint8_t kChecksumUnfinished = 1;
inline constexpr std::uint8_t kNoSegmentation = 0;
inline constexpr std::uint8_t kTcp4Segmentation = 1;
inline constexpr std::uint8_t kSegmentationWithEcn = 0x80;

inline constexpr std::size_t kPacketBytesMax = kVirtioBytes + 65535;

VirtioHeader virtio_header_of(std::span<const std::uint8_t> packet);
void set_virtio_header(std::span<std::uint8_t> packet, const VirtioHeader& header);

// Big-endian, as on the wire; at `offset` of `bytes`.
std::uint16_t get16(std::span<const std::uint8_t> bytes, std::size_t offset);
std::uint32_t get32(std::span<const std::uint8_t> bytes, std::size_t offset);
void put16(std::span<std::uint8_t> bytes, std::size_t offset, std::uint16_t value);
void put32(std::span<std::uint8_t> bytes, std::size_t offset, std::uint32_t value);

// Where things are in a packet; offsets count from its first byte, the virtio header's.
struct PacketLayout {
  std::uint32_t destination;
  std::uint8_t protocol;  // IPPROTO_…
  std::size_t transport;  // where IPv4's payload begins
  std::size_t payload;    // where TCP's or UDP's payload begins; `transport` if it is neither
};

// Nothing if the packet is not IPv4, or ends before its own headers do.
std::optional<PacketLayout> layout_of(std::span<const std::uint8_t> packet);

}  // namespace isthmus::wan

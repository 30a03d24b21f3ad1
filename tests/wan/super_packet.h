// SuperPacket: what TCP segmentation offload hands over, up to 64 KiB with one header, seen as the
// segments of wire size that a network would have carried. It is cut into runs of segments, each of
// which is a packet of its own; any other packet is one segment. It decides nobody's fate.
//
// This is why the emulator is fast: segments are lost and delayed one by one, and travel together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/wan/packets.h"

namespace isthmus::wan {

class SuperPacket {
 public:
  // `packet` is borrowed, and has that layout.
  SuperPacket(std::span<const std::uint8_t> packet, const PacketLayout& layout);

  std::size_t segments() const { return segments_; }
  // Of IPv4's header and all after it, in one segment.
  std::size_t wire_bytes(std::size_t segment) const;

  // Segments [first, last) as a packet that a TUN device takes: its lengths, sequence number, flags
  // and checksums are those of its own.
  std::vector<std::uint8_t> cut(std::size_t first, std::size_t last) const;

  // The payload of `segment` in the packet that was cut from `first` on.
  std::span<std::uint8_t> payload(std::span<std::uint8_t> cut_packet, std::size_t first,
                                  std::size_t segment) const;

 private:
  std::size_t payload_bytes(std::size_t first, std::size_t last) const;
  void correct_ip_header(std::span<std::uint8_t> packet, std::size_t first) const;
  void correct_tcp_header(std::span<std::uint8_t> packet, std::size_t first,
                          std::size_t last) const;
  void correct_virtio_header(std::span<std::uint8_t> packet) const;

  const std::span<const std::uint8_t> packet_;
  const PacketLayout layout_;
  std::size_t segments_ = 1;
  std::size_t segment_bytes_;  // of payload; the last segment may have less
};

}  // namespace isthmus::wan

#include "tests/wan/super_packet.h"

#include <netinet/in.h>

#include <algorithm>

#include "base/assert.h"

namespace isthmus::wan {

namespace {

// Offsets in the headers of IPv4 and TCP.
constexpr std::size_t kIpLength = 2, kIpId = 4, kIpChecksum = 10, kIpAddresses = 12;
constexpr std::size_t kTcpSequence = 4, kTcpFlags = 13, kTcpChecksum = 16;
constexpr std::uint8_t kFin = 0x01, kPush = 0x08, kWindowReduced = 0x80;

// The sum of the Internet checksum (RFC 1071), not yet complemented.
std::uint16_t folded_sum(std::span<const std::uint8_t> bytes, std::uint32_t sum = 0) {
  ISTHMUS_ASSERT(bytes.size() % 2 == 0);  // headers
  for (std::size_t i = 0; i < bytes.size(); i += 2) sum += get16(bytes, i);
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(sum);
}

}  // namespace

SuperPacket::SuperPacket(std::span<const std::uint8_t> packet, const PacketLayout& layout)
    : packet_(packet), layout_(layout), segment_bytes_(packet.size() - layout.payload) {
  const auto header = virtio_header_of(packet);
  const bool tcp = layout.protocol == IPPROTO_TCP && layout.payload > layout.transport;
  const bool offloaded = (header.segmentation & ~kSegmentationWithEcn) == kTcp4Segmentation &&
                         header.segment_bytes > 0;
  if (!tcp || !offloaded || segment_bytes_ <= header.segment_bytes) return;
  segments_ = (segment_bytes_ + header.segment_bytes - 1) / header.segment_bytes;
  segment_bytes_ = header.segment_bytes;
}

std::size_t SuperPacket::payload_bytes(std::size_t first, std::size_t last) const {
  const auto all = packet_.size() - layout_.payload;
  return std::min(last * segment_bytes_, all) - first * segment_bytes_;
}

std::size_t SuperPacket::wire_bytes(std::size_t segment) const {
  return layout_.payload - kVirtioBytes + payload_bytes(segment, segment + 1);
}

std::vector<std::uint8_t> SuperPacket::cut(std::size_t first, std::size_t last) const {
  ISTHMUS_ASSERT(first < last && last <= segments_);
  if (first == 0 && last == segments_) return {packet_.begin(), packet_.end()};
  const auto headers = packet_.first(layout_.payload);
  const auto payload =
      packet_.subspan(layout_.payload + first * segment_bytes_, payload_bytes(first, last));
  std::vector<std::uint8_t> packet;
  packet.reserve(headers.size() + payload.size());
  packet.insert(packet.end(), headers.begin(), headers.end());
  packet.insert(packet.end(), payload.begin(), payload.end());
  correct_ip_header(packet, first);
  correct_tcp_header(packet, first, last);
  correct_virtio_header(packet);
  return packet;
}

std::span<std::uint8_t> SuperPacket::payload(std::span<std::uint8_t> cut_packet, std::size_t first,
                                             std::size_t segment) const {
  return cut_packet.subspan(layout_.payload + (segment - first) * segment_bytes_,
                            payload_bytes(segment, segment + 1));
}

void SuperPacket::correct_ip_header(std::span<std::uint8_t> packet, std::size_t first) const {
  const auto ip = packet.subspan(kVirtioBytes);
  put16(ip, kIpLength, static_cast<std::uint16_t>(ip.size()));
  // Each segment has an identification of its own, as the kernel numbers them.
  put16(ip, kIpId, static_cast<std::uint16_t>(get16(ip, kIpId) + first));
  put16(ip, kIpChecksum, 0);
  const auto header = ip.first(layout_.transport - kVirtioBytes);
  put16(ip, kIpChecksum, static_cast<std::uint16_t>(~folded_sum(header)));
}

void SuperPacket::correct_tcp_header(std::span<std::uint8_t> packet, std::size_t first,
                                     std::size_t last) const {
  const auto tcp = packet.subspan(layout_.transport);
  const auto sequence = get32(tcp, kTcpSequence);
  put32(tcp, kTcpSequence, sequence + static_cast<std::uint32_t>(first * segment_bytes_));
  // FIN and PSH belong to the last segment, CWR to the first.
  if (last != segments_) tcp[kTcpFlags] &= static_cast<std::uint8_t>(~(kFin | kPush));
  if (first != 0) tcp[kTcpFlags] &= static_cast<std::uint8_t>(~kWindowReduced);
  const auto addresses = packet.subspan(kVirtioBytes + kIpAddresses, 8);
  const auto length = static_cast<std::uint32_t>(tcp.size());
  put16(tcp, kTcpChecksum, folded_sum(addresses, IPPROTO_TCP + length));
}

void SuperPacket::correct_virtio_header(std::span<std::uint8_t> packet) const {
  auto header = virtio_header_of(packet);
  header.flags = kChecksumUnfinished;
  header.checksum_start = static_cast<std::uint16_t>(layout_.transport - kVirtioBytes);
  header.checksum_offset = kTcpChecksum;
  header.header_bytes = static_cast<std::uint16_t>(layout_.payload - kVirtioBytes);
  if (packet.size() - layout_.payload <= segment_bytes_) {
    header.segmentation = kNoSegmentation;
    header.segment_bytes = 0;
  }
  set_virtio_header(packet, header);
}

}  // namespace isthmus::wan

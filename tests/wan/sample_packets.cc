#include "tests/wan/sample_packets.h"

#include <netinet/in.h>

#include <algorithm>

#include "tests/wan/packets.h"
#include "tests/wan/router.h"

namespace isthmus::wan {

namespace {

constexpr std::size_t kIp = 20, kTcp = 32, kUdp = 8;

std::uint16_t complement(std::uint16_t sum) { return static_cast<std::uint16_t>(~sum); }

// What TCP's and UDP's checksums add to their own bytes: addresses, protocol and length.
Bytes pseudo_header(std::span<const std::uint8_t> ip, std::size_t length) {
  Bytes bytes(ip.begin() + 12, ip.begin() + 20);
  bytes.resize(12);
  bytes[9] = ip[9];
  put16(bytes, 10, static_cast<std::uint16_t>(length));
  return bytes;
}

Bytes ip_packet(std::uint8_t protocol, std::size_t transport_bytes, std::size_t from,
                std::size_t to) {
  Bytes packet(kVirtioBytes + kIp + transport_bytes);
  const auto ip = std::span(packet).subspan(kVirtioBytes);
  ip[0] = 0x45;
  put16(ip, 2, static_cast<std::uint16_t>(ip.size()));
  put16(ip, 4, 0xfffe);  // identification: wraps in the third segment
  ip[6] = 0x40;          // don't fragment
  ip[8] = 64;            // time to live
  ip[9] = protocol;
  put32(ip, 12, kNetworkAddress + 1 + static_cast<std::uint32_t>(from));
  put32(ip, 16, kNetworkAddress + 1 + static_cast<std::uint32_t>(to));
  put16(ip, 10, complement(internet_sum(ip.first(kIp))));
  return packet;
}

// The virtio header and the unfinished checksum of a packet of ours.
void offload(Bytes& packet, std::uint16_t headers, std::uint16_t checksum_offset,
             std::uint8_t segmentation, std::uint16_t segment_bytes) {
  set_virtio_header(
      packet, {kChecksumUnfinished, segmentation, headers, segment_bytes, kIp, checksum_offset});
  const auto ip = std::span(packet).subspan(kVirtioBytes);
  put16(ip, kIp + checksum_offset, internet_sum(pseudo_header(ip, ip.size() - kIp)));
}

}  // namespace

Bytes sample_payload(std::size_t bytes) {
  Bytes payload(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    payload[i] = static_cast<std::uint8_t>(i * 131 + i / 256 * 17);
  return payload;
}

Bytes tcp_packet(std::span<const std::uint8_t> payload, const TcpSample& sample) {
  auto packet = ip_packet(IPPROTO_TCP, kTcp + payload.size(), sample.from, sample.to);
  const auto tcp = std::span(packet).subspan(kVirtioBytes + kIp);
  put32(tcp, 4, sample.sequence);
  tcp[12] = kTcp / 4 << 4;
  tcp[13] = sample.flags;
  std::copy(payload.begin(), payload.end(), tcp.begin() + kTcp);
  const bool super = payload.size() > sample.segment_bytes;
  offload(packet, kIp + kTcp, 16, super ? kTcp4Segmentation : kNoSegmentation,
          static_cast<std::uint16_t>(super ? sample.segment_bytes : 0));
  return packet;
}

Bytes udp_packet(std::span<const std::uint8_t> payload, std::size_t from, std::size_t to) {
  auto packet = ip_packet(IPPROTO_UDP, kUdp + payload.size(), from, to);
  const auto udp = std::span(packet).subspan(kVirtioBytes + kIp);
  put16(udp, 4, static_cast<std::uint16_t>(udp.size()));
  std::copy(payload.begin(), payload.end(), udp.begin() + kUdp);
  offload(packet, kIp + kUdp, 6, kNoSegmentation, 0);
  return packet;
}

std::uint16_t internet_sum(std::span<const std::uint8_t> bytes) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    sum += i % 2 == 0 ? std::uint64_t{bytes[i]} * 256 : std::uint64_t{bytes[i]};
  if (sum == 0) return 0;
  const auto rest = sum % 0xffff;  // what folding the carries amounts to
  return static_cast<std::uint16_t>(rest == 0 ? 0xffff : rest);
}

void finish_checksum(Bytes& packet) {
  const auto header = virtio_header_of(packet);
  const auto ip = std::span(packet).subspan(kVirtioBytes);
  const auto summed = ip.subspan(header.checksum_start);
  put16(summed, header.checksum_offset, complement(internet_sum(summed)));
}

bool ip_checksum_is_right(std::span<const std::uint8_t> packet) {
  return internet_sum(packet.subspan(kVirtioBytes, kIp)) == 0xffff;
}

bool tcp_checksum_is_right(std::span<const std::uint8_t> packet) {
  const auto ip = packet.subspan(kVirtioBytes);
  auto summed = pseudo_header(ip, ip.size() - kIp);
  summed.insert(summed.end(), ip.begin() + kIp, ip.end());
  return internet_sum(summed) == 0xffff;
}

}  // namespace isthmus::wan

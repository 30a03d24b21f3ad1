#include "inter/tcp_facts.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace isthmus::inter {

std::optional<TcpFacts> read_tcp_facts(int descriptor) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      size < offsetof(tcp_info, tcpi_delivered_ce))
    return std::nullopt;
  char name[32] = "";
  socklen_t name_size = sizeof name - 1;
  (void)::getsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name, &name_size);
  TcpFacts facts;
  facts.congestion_control = name;
  facts.round_trip = info.tcpi_rtt * kMicrosecond;
  // The kernel's "none yet" is the largest number.
  if (info.tcpi_min_rtt != ~0U) facts.round_trip_min = info.tcpi_min_rtt * kMicrosecond;
  facts.segment_bytes = info.tcpi_snd_mss;
  facts.window_bytes = std::uint64_t{info.tcpi_snd_cwnd} * info.tcpi_snd_mss;
  facts.slow_start = info.tcpi_snd_cwnd < info.tcpi_snd_ssthresh;
  facts.waiting_bytes =
      info.tcpi_notsent_bytes + std::uint64_t{info.tcpi_unacked} * info.tcpi_snd_mss;
  facts.unsent_bytes = info.tcpi_notsent_bytes;
  facts.acknowledged_bytes = info.tcpi_bytes_acked;
  facts.delivered_bytes = std::uint64_t{info.tcpi_delivered} * info.tcpi_snd_mss;
  facts.arrived_bytes = info.tcpi_bytes_acked + std::uint64_t{info.tcpi_sacked} * info.tcpi_snd_mss;
  facts.segments_sent = info.tcpi_data_segs_out;
  facts.segments_resent = info.tcpi_total_retrans;
  facts.silence = info.tcpi_last_data_recv * kMillisecond;
  facts.unheard = std::min(info.tcpi_last_data_recv, info.tcpi_last_ack_recv) * kMillisecond;
  const auto span = [](std::uint64_t us) { return static_cast<Nanoseconds>(us) * kMicrosecond; };
  facts.busy = span(info.tcpi_busy_time);
  facts.limited_by_window = span(info.tcpi_rwnd_limited);
  facts.limited_by_buffer = span(info.tcpi_sndbuf_limited);
  return facts;
}

std::optional<std::uint64_t> tcp_bytes_received(int descriptor) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  return info.tcpi_bytes_received;
}

Nanoseconds TcpFacts::time_for(double bytes) const {
  const auto windows = bytes / std::max(static_cast<double>(window_bytes), 1.0);
  const auto trips = slow_start ? std::log2(1 + windows) : windows;
  return static_cast<Nanoseconds>(std::max(trips, 1.0) * static_cast<double>(round_trip));
}

void set_pace_max(int descriptor, std::optional<double> bytes_per_second) {
  // ~0 alone means to the kernel that nobody asks for a pace.
  constexpr double kMost = 1e18;
  const auto pace = bytes_per_second
                        ? static_cast<unsigned long>(std::clamp(*bytes_per_second, 1.0, kMost))
                        : ~0UL;
  (void)::setsockopt(descriptor, SOL_SOCKET, SO_MAX_PACING_RATE, &pace, sizeof pace);
}

}  // namespace isthmus::inter

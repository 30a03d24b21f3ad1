// TcpFacts: what the kernel knows of one TCP connection (TCP_INFO): for paces
// (inter/polite_rate.h, inter/line_pace.h), for how many connections there are and what goes on
// which (inter/bulk_sender.h), as a sign of life, for `isthmus link test` and for people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"

namespace isthmus::inter {

struct TcpFacts {
  std::string congestion_control;  // in force
  Nanoseconds round_trip = 0;      // smoothed over about the last one
  Nanoseconds round_trip_min = 0;  // of the last minutes; 0: none yet
  std::uint32_t segment_bytes = 0;
  std::uint64_t window_bytes = 0;      // that may be on their way now
  bool slow_start = false;             // the window doubles in each round trip
  std::uint64_t waiting_bytes = 0;     // handed over and not acknowledged
  std::uint64_t unsent_bytes = 0;      // of those: not sent yet
  std::optional<Nanoseconds> silence;  // since data last came; nothing: not known
  Nanoseconds unheard = 0;             // since anything came, an answer to TCP's own probe too
  // Since the connection began.
  std::uint64_t acknowledged_bytes = 0;
  std::uint64_t delivered_bytes = 0;  // those after a lost segment included; in whole segments
  std::uint64_t arrived_bytes = 0;    // the same, to the byte where no segment is missing
  std::uint64_t segments_sent = 0;    // with data, those that were sent again included
  std::uint64_t segments_resent = 0;
  Nanoseconds busy = 0;               // something was to be sent
  Nanoseconds limited_by_window = 0;  // of that: the receiver's window was full
  Nanoseconds limited_by_buffer = 0;  // of that: the sender's buffer was

  // About so long until the other end has acknowledged so many bytes from now on, without losses.
  Nanoseconds time_for(double bytes) const;
};

// Nothing: no TCP connection, or an old kernel.
std::optional<TcpFacts> read_tcp_facts(int descriptor);
// By the kernel, whether anybody has read them or not. Nothing: no TCP socket.
std::optional<std::uint64_t> tcp_bytes_received(int descriptor);

// The kernel sends no faster on this connection from now on, whatever its congestion control
// allows. Nothing: as fast as that allows. Once there was a pace, infinity included, the kernel
// spreads what it sends over the round trip, whatever the congestion control.
void set_pace_max(int descriptor, std::optional<double> bytes_per_second);

}  // namespace isthmus::inter

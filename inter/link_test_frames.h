// The frames of a link test (PROTOCOL.md, "Link test"; inter/link_tester.h gives them their
// meaning). They stand beside those of a Link and need no session: who the peer is, the wire has
// proven. Decoders are given what follows the frame's first two bytes and the number of the test,
// which come from a peer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/byte_stream.h"
#include "base/clock.h"

namespace isthmus::inter {

// The first byte of these frames; those of a link (Frame, in inter/link_frames.h) are others.
inline constexpr std::uint8_t kLinkTestFrame = 7;

// Numbers a test; its asker draws it.
using LinkTestId = std::uint64_t;

enum class LinkTestFrame : std::uint8_t {
  ask = 1,     // asker → other: may I?
  answer = 2,  // other → asker
  ping = 3,    // asker → other
  pong = 4,    // other → asker: the same stamp
  expect = 5,  // asker → other: data comes
  send = 6,    // asker → other: send data
  data = 7,    // on the bulk lane, alone
  sent = 8,    // sender → receiver: all of it has been handed to the wire
  got = 9,     // receiver → asker
  end = 10,    // either: the test is over
};

inline constexpr Nanoseconds kLinkTestTimeMax = 30 * kSecond;  // each direction
inline constexpr std::uint64_t kLinkTestBytesMax = 1 << 30;    // each direction
// For the first data: beside an exchange below a rate limit they wait for their turn, for a
// connection that takes them, and for what that has to send before.
inline constexpr Nanoseconds kLinkTestFirstDataPatience = 30 * kSecond;
// All of a test, as the end that is asked lets it go on.
inline constexpr Nanoseconds kLinkTestLongest =
    2 * (kLinkTestTimeMax + kLinkTestFirstDataPatience) + 60 * kSecond;
inline constexpr std::size_t kLinkTestDataMax = 256 << 10;  // one message
inline constexpr std::size_t kLinkTestTextMax = 200;

struct LinkTestAsk {
  bool force = false;  // although outer steps are exchanged

  void write(ByteWriter& out) const;
  static std::optional<LinkTestAsk> read(ByteReader& in);
};

// Of one direction; with expect and send.
struct LinkTestPlan {
  Nanoseconds time = 0;
  std::uint64_t bytes_max = 0;

  void write(ByteWriter& out) const;
  static std::optional<LinkTestPlan> read(ByteReader& in);
};

// How one end is set up.
struct LinkTestSide {
  std::string tcp_rmem, tcp_wmem;  // "4096 131072 6291456", as net.ipv4.tcp_rmem; "": not known
  std::uint64_t rate_limit = 0;    // bits per second; 0: none
  bool polite = false;
  bool narrows_in_pauses = false;  // net.ipv4.tcp_slow_start_after_idle

  std::uint64_t receive_bytes_max() const;  // 0: not known
  std::uint64_t send_bytes_max() const;
  void write(ByteWriter& out) const;
  static std::optional<LinkTestSide> read(ByteReader& in);
};

struct LinkTestAnswer {
  std::string refusal;  // "": it may begin
  LinkTestSide side;

  void write(ByteWriter& out) const;
  static std::optional<LinkTestAnswer> read(ByteReader& in);
};

// Why there is no figure.
enum class Unmeasured : std::uint8_t {
  no,
  too_little,  // came, or too seldom
  rising,      // to the end
  too_short,   // for the line's round trip
};

// What left, and what the sending end's kernel saw of it while warm (inter/sending_watch.h).
struct LinkTestSent {
  std::uint64_t bytes = 0;    // in all
  std::uint64_t arrived = 0;  // acknowledged while warm
  Nanoseconds warm = 0;       // so long; 0: no kernel tells, or it never was
  std::uint64_t segments = 0, segments_resent = 0;
  Nanoseconds busy = 0, limited_by_window = 0, limited_by_buffer = 0;
  std::string congestion_control, congestion_control_why;
  bool dialed = false;
  std::uint32_t connections = 1;           // that it was sent on; the counts are of all of them
  Unmeasured unmeasured = Unmeasured::no;  // as far as this end can tell; the other is not told

  void write(ByteWriter& out) const;
  static std::optional<LinkTestSent> read(ByteReader& in);
};

// What the receiving end measured: the rate at which it could read.
struct LinkTestGot {
  double bits_per_second = 0;              // while warm
  Nanoseconds warm = 0;                    // so long
  std::uint64_t bytes = 0;                 // of the test, in all
  Unmeasured unmeasured = Unmeasured::no;  // as far as this end can tell; the other is not told

  void write(ByteWriter& out) const;
  static std::optional<LinkTestGot> read(ByteReader& in);
};

ByteWriter link_test_frame(LinkTestFrame kind, LinkTestId test);

}  // namespace isthmus::inter

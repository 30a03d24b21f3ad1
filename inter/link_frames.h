// The frames that the two ends of a Link exchange, and their limits (PROTOCOL.md, "Link"). Bytes
// in, bytes out: what a frame means is for inter/link.h. A decoder is given what follows the
// frame's first byte, which comes from a peer: nothing is assumed of it, and spans point into it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/byte_stream.h"
#include "base/clock.h"
#include "inter/messages.h"
#include "inter/sync_options.h"
#include "security/hash.h"

namespace isthmus::inter {

inline constexpr std::uint16_t kProtocolVersion = 9;

enum class Frame : std::uint8_t { hello = 1, refuse = 2, data = 3, ack = 4, chunk = 5, bind = 6 };

// The first byte of a control message that the link keeps to itself; MessageType stays below.
inline constexpr std::uint8_t kHave = 0xF0;

// Chunks that a sender may send before the receiver grants any: a transfer begins without a round
// trip.
inline constexpr std::uint64_t kCreditAtStart = 4;

inline constexpr std::size_t kRefusalBytesMax = 512;
inline constexpr std::size_t kRecentAcksMax = 64;  // chunk acknowledgements in one ack
inline constexpr std::size_t kDataHeaderBytes = 25;
inline constexpr std::size_t kTransferChunksMax =
    1 << 18;  // of a transfer, so that Have fits one message

// What a link says of its own side when a session begins.
struct Introduction {
  std::uint64_t boot = 0;  // counts the starts of this gateway, on disk
  security::Digest run;    // zero: none yet
  Fingerprint fingerprint;
};

struct Hello {
  std::uint16_t version = kProtocolVersion;  // of another one nothing else is read
  std::uint64_t nonce = 0;                   // never zero
  std::uint64_t echo = 0;                    // the last nonce seen of the other end
  bool up = false;                           // a session stands
  Introduction introduction;

  Bytes encode() const;
};
std::optional<Hello> decode_hello(ByteReader& in);

// Why no session begins.
struct Refuse {
  enum class Kind : std::uint8_t {
    introduction = 0,  // version, run, fingerprint or roster
    duplicate = 1,     // another live process has a session with this identity
  } kind = Kind::introduction;
  std::string why;

  Bytes encode() const;
};
std::optional<Refuse> decode_refuse(ByteReader& in);

struct Data {
  std::uint64_t session = 0, sequence = 0, acknowledged = 0;
  std::span<const std::byte> body;

  Bytes encode() const;
};
std::optional<Data> decode_data(ByteReader& in);

struct Ack {
  std::uint64_t session = 0;
  std::uint64_t acknowledged = 0;  // control messages, all up to here
  Nanoseconds stamp = 0;           // the sender's clock
  Nanoseconds echo = 0;            // the receiver's last stamp, which came `held` ago
  Nanoseconds held = -1;           // -1: none came yet
  std::uint64_t credit = 0;        // chunks may be sent up to this sequence
  std::uint64_t floor = 0;  // chunks up to this sequence are acknowledged or given up by the sender
  bool stalled = false;     // some chunk finds no room here yet: none goes again meanwhile
  std::uint16_t width = 1;  // connections that the sender would like for its bulk
  std::uint16_t width_max = 0xffff;  // and as many as it takes at most, for both directions
  std::vector<std::pair<TransferId, std::uint32_t>> chunks;  // checked and kept

  Bytes encode() const;
};
std::optional<Ack> decode_ack(ByteReader& in);

struct Chunk {
  std::uint64_t session = 0, sequence = 0;
  TransferId transfer = 0;
  std::uint32_t index = 0;
  std::span<const std::byte> payload;

  Bytes encode_head() const;  // what stands before the payload
  Bytes encode() const;
};
std::optional<Chunk> decode_chunk(ByteReader& in);

// Says which session the connection it comes on belongs to.
struct Bind {
  std::uint64_t session = 0;
  std::uint32_t place = 0;  // among the sender's connections of this lane (BulkConnections)

  Bytes encode() const;
};
std::optional<Bind> decode_bind(ByteReader& in);

// What has arrived of a transfer; the body of a data frame.
struct Have {
  TransferId transfer = 0;
  std::vector<bool> chunks;

  Bytes encode() const;  // with kHave in front
};
std::optional<Have> decode_have(ByteReader& in);

}  // namespace isthmus::inter

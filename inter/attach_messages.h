// The messages between a rank (or `isthmus status`) and its gateway, and every limit of them; the
// document for those who write a rank in another language is inter/ATTACH.md. Each message is a
// struct that writes and reads its own bytes; decoders meet a process that may send anything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/byte_stream.h"
#include "base/clock.h"
#include "base/result.h"
#include "inter/model_layout.h"
#include "inter/ranks.h"
#include "security/hash.h"

namespace isthmus::inter::attach {

inline constexpr std::uint32_t kVersion = 1;

inline constexpr std::size_t kHeaderBytes = 5;             // u32 bytes of the body, u8 kind
inline constexpr std::size_t kAttachBytesMax = 16 << 20;   // of Attach
inline constexpr std::size_t kRankMessageBytesMax = 4096;  // of all others from a rank
inline constexpr std::size_t kReplyBytesMax = 16 << 20;    // of those from a gateway
inline constexpr std::size_t kBoxesMax = 1 << 16;          // of one rank
inline constexpr std::size_t kTextBytesMax = 200;          // a rank's state, an error's code
inline constexpr std::size_t kSentenceBytesMax = 4000;

enum class Kind : std::uint8_t {
  attach = 1,
  initial = 2,
  contribute = 3,
  took = 4,
  progress = 5,
  leaving = 6,
  status = 16,
  link_test = 17,
  memory = 129,
  state = 130,
  taken = 131,
  refused = 132,
  status_json = 144,
  link_test_json = 145,
};

// From a rank.

struct Attach {
  static constexpr Kind kind = Kind::attach;
  std::uint32_t version = kVersion;
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  std::int64_t pid = 0;
  std::string model_settings;
  std::vector<TensorInfo> tensors;
  std::vector<Box> boxes;
  void write(ByteWriter& out) const;
  void read(ByteReader& in);  // stops after `version` when that is another
};

struct Initial {
  static constexpr Kind kind = Kind::initial;
  void write(ByteWriter&) const {}
  void read(ByteReader&) {}
};

struct Contribute {
  static constexpr Kind kind = Kind::contribute;
  std::uint64_t publication = 0;  // of the State it builds on, or of a later repetition of it
  std::uint64_t step = 0;
  std::uint64_t tokens = 0;
  void write(ByteWriter& out) const;
  void read(ByteReader& in);
};

struct Took {
  static constexpr Kind kind = Kind::took;
  std::uint64_t publication = 0;
  void write(ByteWriter& out) const;
  void read(ByteReader& in);
};

struct Progress {
  static constexpr Kind kind = Kind::progress;
  std::uint64_t inner_step = 0;
  double loss = 0;
  double tokens_per_second = 0;
  std::string state;
  void write(ByteWriter& out) const;
  void read(ByteReader& in);
};

struct Leaving {
  static constexpr Kind kind = Kind::leaving;
  void write(ByteWriter&) const {}
  void read(ByteReader&) {}
};

struct Status {
  static constexpr Kind kind = Kind::status;
  void write(ByteWriter&) const {}
  void read(ByteReader&) {}
};

struct LinkTest {
  static constexpr Kind kind = Kind::link_test;
  std::uint64_t number = 0;  // the caller's own; under the same one the test is only asked after
  std::string peer;          // name of the site
  bool force = false;
  Nanoseconds time = 0;         // each direction; 0: as the gateway likes
  std::uint64_t bytes_max = 0;  // the same
  void write(ByteWriter& out) const;
  void read(ByteReader& in);
};

// From a gateway.

// With the descriptor of the memory, unless it has 0 bytes.
struct Memory {
  static constexpr Kind kind = Kind::memory;
  std::uint64_t bytes = 0;
  std::uint64_t contribution_offset = 0;  // bytes from the start
  std::uint64_t state_offset = 0;
  std::uint64_t elements = 0;  // f32 in each of the two areas
  void write(ByteWriter& out) const;
  void read(ByteReader& in);
};

struct State {
  static constexpr Kind kind = Kind::state;
  std::uint64_t publication = 0;  // from 1 on, ascending
  std::uint64_t step = 0;
  security::Digest record;
  security::Digest run;
  MergeRule merge = MergeRule::keep_progress;
  bool final_step = false;
  bool contribution_open = false;
  std::uint64_t contributed = 0;  // the newest step of which this site's contribution is kept
  void write(ByteWriter& out) const;
  void read(ByteReader& in);
};

struct Taken {
  static constexpr Kind kind = Kind::taken;
  std::uint64_t step = 0;  // 0: the initial parameters
  void write(ByteWriter& out) const;
  void read(ByteReader& in);
};

struct Refused {
  static constexpr Kind kind = Kind::refused;
  std::string code;  // to_string(ErrorCode)
  std::string sentence;
  void write(ByteWriter& out) const;
  void read(ByteReader& in);
};

struct StatusJson {
  static constexpr Kind kind = Kind::status_json;
  std::string json;
  void write(ByteWriter& out) const;
  void read(ByteReader& in);
};

struct LinkTestJson {
  static constexpr Kind kind = Kind::link_test_json;
  std::string json;
  void write(ByteWriter& out) const;
  void read(ByteReader& in);
};

Refused refused_of(const Error& why);
Error error_of(const Refused& refused);

struct Header {
  std::uint32_t body_bytes = 0;
  Kind kind{};
};
Header read_header(std::span<const std::byte> header);  // of kHeaderBytes
// What a rank may send in a message of this kind; 0: no such kind.
std::size_t rank_message_bytes_max(Kind kind);

Bytes finish_frame(Kind kind, ByteWriter body);

// Header and body.
template <class Message>
Bytes encode(const Message& message) {
  ByteWriter body;
  message.write(body);
  return finish_frame(Message::kind, std::move(body));
}

// Of a body; nothing when it does not decode to its last byte.
template <class Message>
std::optional<Message> decode(std::span<const std::byte> body) {
  Message message;
  ByteReader in(body);
  message.read(in);
  if (!in.done()) return std::nullopt;
  return message;
}

}  // namespace isthmus::inter::attach

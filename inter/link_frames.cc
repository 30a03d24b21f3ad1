#include "inter/link_frames.h"

#include <algorithm>

#include "base/assert.h"

namespace isthmus::inter {
namespace {

constexpr std::uint64_t kLinkMagic = 0x31736d6874736900;  // "\0isthms1"

}  // namespace

Bytes Hello::encode() const {
  ByteWriter out;
  out.put(Frame::hello).put(kLinkMagic).put(version).put(nonce).put(echo).put(up);
  out.put(introduction.boot).raw(introduction.run.bytes);
  introduction.fingerprint.encode(out);
  return out.take();
}

std::optional<Hello> decode_hello(ByteReader& in) {
  Hello hello;
  const auto magic = in.get<std::uint64_t>();
  hello.version = in.get<std::uint16_t>();
  if (!in.ok() || magic != kLinkMagic) return std::nullopt;
  if (hello.version != kProtocolVersion) return hello;
  hello.nonce = in.get<std::uint64_t>();
  hello.echo = in.get<std::uint64_t>();
  hello.up = in.get<bool>();
  hello.introduction.boot = in.get<std::uint64_t>();
  const auto run = in.raw(hello.introduction.run.bytes.size());
  std::copy(run.begin(), run.end(), hello.introduction.run.bytes.begin());
  hello.introduction.fingerprint = Fingerprint::decode(in);
  return when(in.done() && hello.nonce != 0, std::move(hello));
}

Bytes Refuse::encode() const {
  return ByteWriter()
      .put(Frame::refuse)
      .put(kind)
      .string(std::string_view(why).substr(0, kRefusalBytesMax))
      .take();
}

std::optional<Refuse> decode_refuse(ByteReader& in) {
  Refuse refuse;
  refuse.kind = in.get<Refuse::Kind>();
  refuse.why = in.string(kRefusalBytesMax);
  return when(in.done() && refuse.kind <= Refuse::Kind::duplicate, std::move(refuse));
}

Bytes Data::encode() const {
  return ByteWriter()
      .put(Frame::data)
      .put(session)
      .put(sequence)
      .put(acknowledged)
      .raw(body)
      .take();
}

std::optional<Data> decode_data(ByteReader& in) {
  Data data;
  data.session = in.get<std::uint64_t>();
  data.sequence = in.get<std::uint64_t>();
  data.acknowledged = in.get<std::uint64_t>();
  data.body = in.rest();
  return when(in.ok(), data);
}

Bytes Ack::encode() const {
  ISTHMUS_ASSERT(chunks.size() <= kRecentAcksMax);
  ByteWriter out;
  out.put(Frame::ack).put(session).put(acknowledged).put(stamp).put(echo).put(held);
  out.put(credit).put(floor).put(stalled).put(width).put(width_max);
  out.put(static_cast<std::uint32_t>(chunks.size()));
  for (const auto& [transfer, index] : chunks) out.put(transfer).put(index);
  return out.take();
}

std::optional<Ack> decode_ack(ByteReader& in) {
  Ack ack;
  ack.session = in.get<std::uint64_t>();
  ack.acknowledged = in.get<std::uint64_t>();
  ack.stamp = in.get<Nanoseconds>();
  ack.echo = in.get<Nanoseconds>();
  ack.held = in.get<Nanoseconds>();
  ack.credit = in.get<std::uint64_t>();
  ack.floor = in.get<std::uint64_t>();
  ack.stalled = in.get<bool>();
  ack.width = in.get<std::uint16_t>();
  ack.width_max = in.get<std::uint16_t>();
  ack.chunks.resize(in.count(kRecentAcksMax, sizeof(TransferId) + sizeof(std::uint32_t)));
  for (auto& [transfer, index] : ack.chunks) {
    transfer = in.get<TransferId>();
    index = in.get<std::uint32_t>();
  }
  return when(in.done(), std::move(ack));
}

Bytes Chunk::encode_head() const {
  return ByteWriter().put(Frame::chunk).put(session).put(sequence).put(transfer).put(index).take();
}

Bytes Chunk::encode() const {
  auto bytes = encode_head();
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

std::optional<Chunk> decode_chunk(ByteReader& in) {
  Chunk chunk;
  chunk.session = in.get<std::uint64_t>();
  chunk.sequence = in.get<std::uint64_t>();
  chunk.transfer = in.get<TransferId>();
  chunk.index = in.get<std::uint32_t>();
  chunk.payload = in.rest();
  return when(in.ok(), chunk);
}

Bytes Bind::encode() const { return ByteWriter().put(Frame::bind).put(session).put(place).take(); }

std::optional<Bind> decode_bind(ByteReader& in) {
  Bind bind;
  bind.session = in.get<std::uint64_t>();
  bind.place = in.get<std::uint32_t>();
  return when(in.done(), bind);
}

Bytes Have::encode() const {
  ISTHMUS_ASSERT(chunks.size() <= kTransferChunksMax);
  ByteWriter out;
  out.put(kHave).put(transfer).put(static_cast<std::uint32_t>(chunks.size()));
  for (std::size_t i = 0; i < chunks.size(); i += 8) {
    std::uint8_t byte = 0;
    for (std::size_t j = 0; j < 8 && i + j < chunks.size(); ++j)
      byte |= static_cast<std::uint8_t>(chunks[i + j] << j);
    out.put(byte);
  }
  return out.take();
}

std::optional<Have> decode_have(ByteReader& in) {
  Have have;
  have.transfer = in.get<TransferId>();
  const std::size_t count = in.get<std::uint32_t>();
  const auto bits = in.raw((count + 7) / 8);
  if (!in.done() || count > kTransferChunksMax) return std::nullopt;
  if (count % 8 != 0 && std::to_integer<unsigned>(bits.back()) >> (count % 8) != 0)
    return std::nullopt;
  have.chunks.resize(count);
  for (std::size_t i = 0; i < count; ++i)
    have.chunks[i] = (static_cast<unsigned>(bits[i / 8]) >> (i % 8) & 1) != 0;
  return have;
}

}  // namespace isthmus::inter

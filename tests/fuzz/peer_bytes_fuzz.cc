// Fuzz target: whatever a peer can send. The first byte chooses a decoder, which gets the rest;
// with the highest choice the rest is a conversation with a link, whose frames follow one another
// as {u8 what, u8 connection, u16 length, bytes}.
#include <cstdlib>
#include <cstring>

#include "tests/fuzz/fuzz_target.h"
#include "tests/inter/link_world.h"
#include "tests/inter/sample_messages.h"

namespace isthmus::inter {
namespace {

const std::vector<SampleMessage>& samples() {
  static const auto all = sample_messages();
  return all;
}

void require(bool good) {
  if (!good) std::abort();
}

void decode(const SampleMessage& sample, std::span<const std::byte> bytes) {
  const auto again = sample.again(bytes);
  if (!again) return;
  if (sample.normalises)
    require(sample.again(*again) == again);
  else
    require(std::equal(again->begin(), again->end(), bytes.begin(), bytes.end()));
}

void converse(std::span<const std::byte> bytes) {
  ScriptedPeer peer;
  peer.begin_session();
  peer.link.offer(5, 0, 20, std::make_shared<NumberedChunks>(50), false);
  ByteReader in(bytes);
  while (in.ok() && !in.rest().empty()) {
    const auto what = in.get<std::uint8_t>();
    const ConnectionId connection = in.get<std::uint8_t>() % 8;
    const auto said = in.raw(in.get<std::uint16_t>());
    if (!in.ok()) return;
    Bytes frame(said.begin(), said.end());
    const auto lane = (what & 1) != 0 ? Lane::bulk : Lane::control;
    if ((what & 2) != 0 && frame.size() >= 9) {
      const auto session = peer.link.session();
      std::memcpy(frame.data() + 1, &session, sizeof session);
    }
    if ((what & 4) != 0) peer.link.wire_up(lane, connection);
    if ((what & 8) != 0) peer.link.wire_down(lane, connection);
    if ((what & 16) != 0) peer.run_for(kSecond);
    peer.link.wire_message(lane, connection, frame);
    const LinkOptions limits;
    require(peer.link.memory_bytes() <= limits.early_bytes_max + limits.control_queue_bytes_max);
    require(peer.link.round_trip() >= 0 && peer.link.round_trip() <= RoundTrip::kSampleMax);
  }
}

}  // namespace
}  // namespace isthmus::inter

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace isthmus::inter;
  if (size == 0) return 0;
  const auto rest = std::as_bytes(std::span(data, size)).subspan(1);
  const auto choice = data[0] % (samples().size() + 1);
  if (choice < samples().size())
    decode(samples()[choice], rest);
  else
    converse(rest);
  return 0;
}

namespace isthmus {

std::vector<Bytes> fuzz_corpus() {
  std::vector<Bytes> corpus;
  ByteWriter conversation;
  const auto& all = inter::samples();
  conversation.put(static_cast<std::uint8_t>(all.size()));
  for (std::size_t i = 0; i < all.size(); ++i) {
    corpus.push_back(ByteWriter().put(static_cast<std::uint8_t>(i)).raw(all[i].bytes).take());
    conversation.put(static_cast<std::uint8_t>(all[i].name == "chunk" ? 3 : 2))
        .put(static_cast<std::uint8_t>(1 + i % 2))
        .put(static_cast<std::uint16_t>(all[i].bytes.size()))
        .raw(all[i].bytes);
  }
  corpus.push_back(conversation.take());
  return corpus;
}

}  // namespace isthmus

// Fuzz target: a conversation with a link whose session stands. The bits of a step's `what`: 1 on
// the bulk lane, 2 of this session (its number is written over the frame's), 4 the connection comes
// up before, 8 goes down before, 16 a second passes before; `who` is the connection.
#include <cstring>

#include "base/assert.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/script.h"
#include "tests/inter/link_world.h"
#include "tests/inter/sample_messages.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace isthmus;
  using namespace isthmus::inter;
  LinkOptions limits;
  limits.beyond_gap_bytes_max = 1 << 16;
  limits.window_bytes = limits.window_bytes_max = 1 << 16;
  ScriptedPeer peer(limits);
  peer.begin_session();
  peer.link.offer(5, 0, 20, std::make_shared<NumberedChunks>(50), false);
  each_step(fuzz_input(data, size), [&](const ScriptStep& step) {
    const ConnectionId connection = step.who % 8;
    Bytes frame(step.bytes.begin(), step.bytes.end());
    const auto lane = (step.what & 1) != 0 ? Lane::bulk : Lane::control;
    if ((step.what & 2) != 0 && frame.size() >= 9) {
      const auto session = peer.link.session();
      std::memcpy(frame.data() + 1, &session, sizeof session);
    }
    if ((step.what & 4) != 0) peer.link.wire_up(lane, connection);
    if ((step.what & 8) != 0) peer.link.wire_down(lane, connection);
    if ((step.what & 16) != 0) peer.run_for(kSecond);
    peer.link.wire_message(lane, connection, frame);
    ISTHMUS_ASSERT(
        peer.link.memory_bytes() <=
        limits.beyond_gap_bytes_max + limits.control_queue_bytes_max +
            2 * std::max(limits.window_bytes, limits.window_chunks * kBulkMessageBytesMax));
    ISTHMUS_ASSERT(peer.link.round_trip() >= 0 && peer.link.round_trip() <= RoundTrip::kSampleMax);
  });
  return 0;
}

namespace isthmus {

std::vector<Bytes> fuzz_seeds() {
  std::vector<Bytes> seeds;
  ScriptWriter all;
  std::uint8_t connection = 0;
  for (const auto& sample : inter::sample_messages()) {
    const std::uint8_t what = sample.name == "chunk" ? 3 : 2;
    seeds.push_back(ScriptWriter().step(what, what == 3 ? 2 : 1, sample.bytes).take());
    all.step(what, static_cast<std::uint8_t>(1 + connection++ % 2), sample.bytes);
  }
  seeds.push_back(all.take());
  return seeds;
}

}  // namespace isthmus

#include "runtime/share.h"

#include "base/assert.h"

namespace isthmus::runtime {

Result<void> share(intra::Communicator& world, OuterState& state) {
  ByteWriter head;
  head.put(state.step).string(state.record).string(state.run).put(state.from);
  head.put(state.final_step).put(state.contribution_open).put(state.contributed);
  Bytes bytes = head.take();
  ISTHMUS_CHECK(share(world, bytes));
  ByteReader in(bytes);
  state.step = in.get<std::uint64_t>();
  state.record = in.string(bytes.size());
  state.run = in.string(bytes.size());
  state.from = in.get<OuterState::From>();
  state.final_step = in.get<bool>();
  state.contribution_open = in.get<bool>();
  state.contributed = in.get<std::uint64_t>();
  ISTHMUS_ASSERT(in.done());
  return share(world, state.parameters);
}

}  // namespace isthmus::runtime

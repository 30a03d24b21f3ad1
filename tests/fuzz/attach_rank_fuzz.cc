// Fuzz target: what answers a rank of ours on its site's attach socket. Between the answers the
// rank does what its callers do. A step's `what` is one of Act.
#include <algorithm>

#include "inter/attach_client.h"
#include "inter/shared_memory.h"
#include "tests/fuzz/attach_world.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/script.h"
#include "tests/inter/fake_gateway.h"

namespace isthmus::inter {
namespace {

// Bit 16: a descriptor of memory goes along, of 4 KiB times `who` + 1.
enum Act : std::uint8_t { raw, frame, hear, contribute, hang_up, kActs, kWithMemory = 16 };

class World {
 public:
  World() : listening_(*listen_local(path())), client_(*AttachClient::create(path(), whole())) {
    attached_ = client_->reattach(0).has_value();
  }

  void act(const ScriptStep& step) {
    accept();
    std::optional<SharedMemory> memory;
    if ((step.what & kWithMemory) != 0)
      if (auto made = SharedMemory::make((std::uint64_t{step.who} + 1) * 4096))
        memory = std::move(*made);
    const int descriptor = memory ? memory->descriptor() : -1;
    switch ((step.what & 15) % kActs) {
      case raw:
        if (end_) end_->send(step.bytes, descriptor);
        break;
      case frame:
        if (end_) end_->send(framed(step.bytes), descriptor);
        break;
      case hear:
        hear_news();
        break;
      case contribute:
        if (base_) note(client_->contribute(*base_ + 1, values(kWhole, step.who), 640));
        note(client_->progress({3, 2.5, 1000, "computing"}));
        break;
      case hang_up:
        end_.reset();
    }
    if (end_) {
      end_->read();
      end_->received.clear();
    }
  }

 private:
  static std::string path() {
    static const SocketFolder folder;
    return folder.socket();
  }
  void accept() {
    FileDescriptor next(
        ::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (next.valid()) end_.emplace(std::move(next));
  }
  // As runtime/attached_sync.cc does it.
  void hear_news() {
    if (!attached_) {
      attached_ = client_->reattach(0).has_value();
      return;
    }
    if (!base_ && !initial_) {
      initial_ = true;
      note(client_->initial(values(kWhole, 0)));
    }
    const auto state = client_->wait_state(0);
    if (!state) return note(state);
    if (!*state) return;
    ISTHMUS_ASSERT((*state)->parameters.size() == kWhole);
    ISTHMUS_ASSERT(!base_ || (*state)->step > *base_);
    // All of it can be read.
    const auto agreed = (*state)->parameters, contributed = client_->contributed();
    std::vector<float> all(agreed.begin(), agreed.end());
    all.insert(all.end(), contributed.begin(), contributed.end());
    ISTHMUS_ASSERT(all.size() == 2 * kWhole);
    base_ = (*state)->step;
    note(client_->took());
  }
  template <class T>
  void note(const Result<T>& result) {
    if (result) return;
    ISTHMUS_ASSERT(!result.error().text().empty());
    if (result.error().code == ErrorCode::closed) attached_ = false;
  }

  FileDescriptor listening_;
  std::optional<RawEnd> end_;
  std::unique_ptr<AttachClient> client_;
  bool attached_ = false, initial_ = false;
  std::optional<std::uint64_t> base_;
};

}  // namespace
}  // namespace isthmus::inter

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace isthmus;
  inter::World world;
  each_step(fuzz_input(data, size), [&](const ScriptStep& step) { world.act(step); });
  return 0;
}

namespace isthmus {

std::vector<Bytes> fuzz_seeds() {
  using namespace inter;
  attach::Memory memory;
  memory.bytes = 8192;
  memory.state_offset = 4096;
  memory.elements = kWhole;
  attach::State state;
  state.publication = 1;
  const auto begun = [&](ScriptWriter& script) {
    script.step(frame | kWithMemory, 1, unframed(memory)).step(hear, 0).step(hear, 0);
    script.step(frame, 0, unframed(state)).step(hear, 0).step(contribute, 1);
  };
  std::vector<Bytes> seeds;
  ScriptWriter whole_step, again;
  begun(whole_step);
  attach::State next = state;
  next.publication = 2;
  next.step = next.contributed = 1;
  next.record.bytes[0] = std::byte{1};
  whole_step.step(frame, 0, unframed(attach::Taken{1})).step(hear, 0);
  whole_step.step(frame, 0, unframed(next)).step(hear, 0).step(contribute, 2);
  seeds.push_back(whole_step.take());
  begun(again);
  again.step(hang_up, 0).step(hear, 0).step(hear, 0).step(hear, 0);
  again.step(frame | kWithMemory, 1, unframed(memory)).step(hear, 0);
  state.publication = 3;
  again.step(frame, 0, unframed(state)).step(hear, 0).step(frame, 0, unframed(next)).step(hear, 0);
  again.step(frame, 0, unframed(attach::refused_of(Error{ErrorCode::mismatch, "another run"})));
  seeds.push_back(again.step(hear, 0).take());
  seeds.push_back(ScriptWriter()
                      .step(frame, 0, unframed(attach::refused_of({ErrorCode::busy, "later"})))
                      .step(hear, 0)
                      .take());
  return seeds;
}

}  // namespace isthmus

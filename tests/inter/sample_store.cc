#include "tests/inter/sample_store.h"

#include <array>

#include "base/assert.h"
#include "inter/sim/simulated_disk.h"
#include "inter/sim/simulated_keys.h"
#include "tests/inter/sample_messages.h"
#include "tests/inter/written_feedback.h"

namespace isthmus::inter {

ModelLayout sample_layout() {
  return *ModelLayout::make({{"a", Shape{5, 8}, 0}, {"b", Shape{3}, 0}});
}

OuterState sample_state(std::uint64_t step) {
  OuterState state{
      .step = step, .record = sample_record(step, 2).hash(), .agreed = {}, .momentum = {}};
  state.agreed.assign(sample_layout().elements(), static_cast<float>(step));
  state.momentum.assign(sample_layout().elements(), 0.5f);
  return state;
}

std::map<std::string, Bytes> sample_store_files() {
  sim::SimulatedDisk disk{Random(1)};
  OuterStore store(disk, kSampleFolder);
  ISTHMUS_ASSERT(store.load(kSampleVoteFile));
  Certificate genesis{.record = sample_record(0, 2), .ballot = 0, .accepts = {}};
  const Fingerprint rules{{{"sync.codec", "int8"}}};
  genesis.record.fingerprint = rules.digest();
  ISTHMUS_ASSERT(store.begin_run(genesis, sample_layout(), rules));
  for (std::uint64_t step = 1; step <= 2; ++step) {
    ISTHMUS_ASSERT(
        store.append_record({.record = sample_record(step, 2), .ballot = 1, .accepts = {}}));
    ISTHMUS_ASSERT(store.write_vote(step, {.promised = step, .accepted = {}}));
    const auto state = sample_state(step);
    const auto file = store.begin_state(state, state_root(sample_layout(), state));
    ISTHMUS_ASSERT(file);
    while (*(*file)->write_slice()) {
    }
    const Feedback feedback{.step = step,
                            .root = {},
                            .tokens = 10 * step,
                            .residual = LargeVector<float>(sample_layout().elements(), 0.25f)};
    ISTHMUS_ASSERT(write_feedback(store, feedback));
    store.settle_feedback(feedback.step, feedback.root);
  }
  const sim::SimulatedSigner signer(kSampleContributionSite);
  const auto open = sign(signer, kSampleContributionSite, MessageType::open, encode(Open{}));
  auto file = store.contributions().create(kSampleContributionStep, open);
  ISTHMUS_ASSERT(file);
  const std::array<StoredChunk, 3> chunks{{{0, Bytes(30)}, {1, Bytes(30)}, {2, Bytes(30)}}};
  ISTHMUS_ASSERT((*file)->add(chunks));
  ISTHMUS_ASSERT((*file)->add_close(
      sign(signer, kSampleContributionSite, MessageType::close, encode(Close{}))));
  std::map<std::string, Bytes> files;
  for (const auto* name : {"boot", "run", "records", "vote", "state.0", "state.1", "feedback.0",
                           "feedback.1", "contributions/00000003-4"}) {
    auto bytes = read_file(disk, std::string(kSampleFolder) + "/" + name, 1 << 24);
    ISTHMUS_ASSERT(bytes);
    files[name] = std::move(*bytes);
  }
  return files;
}

}  // namespace isthmus::inter

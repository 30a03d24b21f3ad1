// The store of a site that has begun a run, on a disk that forgets what was not synced.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "inter/outer_store.h"
#include "inter/sim/simulated_disk.h"
#include "tests/inter/sample_messages.h"
#include "tests/inter/written_feedback.h"

namespace isthmus::inter {

inline Certificate genesis_of(std::size_t sites) {
  Certificate genesis;
  genesis.record = sample_record(0, sites);
  genesis.record.fingerprint = Fingerprint{}.digest();
  return genesis;
}

inline testing::Matcher<OuterStore::Damaged> damaged(const testing::Matcher<std::string>& what,
                                                     const std::string& then) {
  return testing::AllOf(testing::Field(&OuterStore::Damaged::what, what),
                        testing::Field(&OuterStore::Damaged::then, testing::HasSubstr(then)));
}

class OuterStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    OuterStore store(disk, "outer");
    ASSERT_TRUE(store.load(kVoteFile));
    ASSERT_TRUE(begin_run(store, 2));
  }

  static constexpr VoteFileId kVoteFile = 7;

  Result<void> begin_run(OuterStore& store, std::size_t sites) {
    return store.begin_run(genesis_of(sites), layout, Fingerprint{});
  }

  static Feedback feedback_of(std::uint64_t step, float value) {
    Feedback feedback{.step = step, .root = {}, .tokens = 10 * step, .residual = {}};
    feedback.root.bytes[0] = static_cast<std::byte>(value);
    feedback.residual.assign(5, value);
    return feedback;
  }

  // As a gateway does after a crash that left the feedback of `settled` as the newest one whose
  // contribution is closed, and then once more before the next one is.
  void begin_again(std::uint64_t settled, const Feedback& next) {
    OuterStore store(disk, "outer");
    const auto loaded = store.load(kVoteFile);
    ASSERT_TRUE(loaded);
    for (const auto& feedback : loaded->feedbacks)
      if (feedback.step == settled) store.settle_feedback(feedback.step, feedback.root);
    ASSERT_TRUE(write_feedback(store, next));
    disk.crash();
  }

  std::vector<std::uint64_t> steps_on_disk() {
    OuterStore store(disk, "outer");
    const auto loaded = store.load(kVoteFile);
    std::vector<std::uint64_t> steps;
    for (const auto& feedback : loaded->feedbacks) steps.push_back(feedback.step);
    return steps;
  }

  sim::SimulatedDisk disk{Random(1)};
  ModelLayout layout = *ModelLayout::make({{"a", Shape{5}, 0}});
};

}  // namespace isthmus::inter

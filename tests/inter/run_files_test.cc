// The two files by which a site knows its run, and what it voted in it.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "inter/sim/simulated_keys.h"
#include "inter/sim/simulation.h"
#include "tests/base/temporary_folder.h"
#include "tests/inter/outer_store_fixture.h"

namespace isthmus::inter {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// All of a run hangs by it, and a folder that is moved away takes the vote along.
TEST_F(OuterStoreTest, OneOfTwoRunFilesIsEnough) {
  const auto whole = *read_file(disk, "outer/run", 1 << 20);
  auto spoilt = whole;
  spoilt[50] ^= std::byte{1};
  const auto load = [&] { return OuterStore(disk, "outer").load(kVoteFile); };
  for (const std::string path : {"outer/run", "outer/run.copy"}) {
    ASSERT_TRUE(replace_file(disk, path, spoilt));
    auto loaded = load();
    ASSERT_TRUE(loaded) << loaded.error().text();
    EXPECT_TRUE(loaded->genesis);
    EXPECT_EQ(loaded->layout->elements(), 5U);
    EXPECT_THAT(loaded->damaged,
                ElementsAre(damaged(path + " is damaged", "made anew from the other one")));
    EXPECT_EQ(*read_file(disk, path, 1 << 20), whole);
    ASSERT_TRUE(disk.remove(path));  // as of a version that had but one
    loaded = load();
    ASSERT_TRUE(loaded);
    EXPECT_TRUE(loaded->genesis);
    EXPECT_THAT(loaded->damaged, ElementsAre());
    EXPECT_EQ(*read_file(disk, path, 1 << 20), whole);
  }
  for (const std::string path : {"outer/run", "outer/run.copy"})
    ASSERT_TRUE(replace_file(disk, path, spoilt));
  const auto loaded = load();
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::corrupt);
  EXPECT_THAT(loaded.error().text(), HasSubstr("move the folder outer away"));
}

// Both are whole: neither says which run this site was in.
TEST_F(OuterStoreTest, TwoRunFilesOfTwoRunsAreNotChosenFrom) {
  const auto ours = *read_file(disk, "outer/run", 1 << 20);
  const auto run = [&] {
    return OuterStore(disk, "outer").load(kVoteFile)->genesis->record.hash();
  };
  const auto first = run();
  {
    OuterStore other(disk, "elsewhere");
    ASSERT_TRUE(other.load(kVoteFile));
    ASSERT_TRUE(begin_run(other, 3));
  }
  const auto theirs = *read_file(disk, "elsewhere/run", 1 << 20);
  for (const std::string path : {"outer/run", "outer/run.copy"}) {
    ASSERT_TRUE(replace_file(disk, path, theirs));
    const auto loaded = OuterStore(disk, "outer").load(kVoteFile);
    ASSERT_FALSE(loaded) << path;
    EXPECT_EQ(loaded.error().code, ErrorCode::corrupt);
    EXPECT_THAT(loaded.error().text(),
                AllOf(HasSubstr("outer/run is of run "), HasSubstr("outer/run.copy of run "),
                      HasSubstr(first.hex()), HasSubstr("move")));
    ASSERT_TRUE(disk.remove(path));
    EXPECT_EQ(run(), first);
    EXPECT_EQ(*read_file(disk, path, 1 << 20), ours);
  }
}

// Whatever a crash leaves of the two, the site has its run or none.
TEST(BeginRunTest, ACrashAtAnyOperationLeavesTheRunOrNone) {
  const auto layout = *ModelLayout::make({{"a", Shape{5}, 0}});
  const auto genesis = genesis_of(2);
  constexpr VoteFileId kVoteFile = 7;
  std::map<std::string, int> left;
  int operations = 0;
  for (Nanoseconds crash = 0, end = 1; crash <= end; crash += kMillisecond)
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      sim::Simulation simulation;
      sim::SimulatedDisk disk(Random(seed), &simulation);
      disk.set_speed({.operation = kMillisecond, .sync = kMillisecond, .bytes_per_second = 1e9});
      {
        OuterStore store(disk, "outer");
        ASSERT_TRUE(store.load(kVoteFile));
        disk.begin_job();
        ASSERT_TRUE(store.begin_run(genesis, layout, Fingerprint{}));
        end = disk.end_job();
      }
      operations = static_cast<int>(end / kMillisecond);
      simulation.advance(crash);
      disk.crash();
      std::string files;
      for (const auto* name : {"outer/run", "outer/run.copy"})
        files += read_file(disk, name, 1 << 20) ? '1' : '0';
      ++left[files];
      OuterStore store(disk, "outer");
      const auto loaded = store.load(kVoteFile);
      ASSERT_TRUE(loaded) << loaded.error().text();
      EXPECT_TRUE(loaded->damaged.empty());
      EXPECT_EQ(loaded->genesis.has_value(), files != "00") << files;
      EXPECT_TRUE(loaded->genesis || crash < end);
      if (!loaded->genesis) {
        ASSERT_TRUE(store.begin_run(genesis, layout, Fingerprint{}));
      }
      EXPECT_EQ(*read_file(disk, "outer/run", 1 << 20),
                *read_file(disk, "outer/run.copy", 1 << 20));
      const auto again = OuterStore(disk, "outer").load(kVoteFile);
      ASSERT_TRUE(again);
      EXPECT_EQ(again->genesis->record.hash(), genesis.record.hash());
    }
  EXPECT_GE(operations, 10);
  for (const auto* files : {"00", "10", "11"}) EXPECT_GT(left[files], 0) << files;
  EXPECT_EQ(left["01"], 0);
}

// What a site voted in a run is no vote for the founding of another one.
TEST_F(OuterStoreTest, AVoteOfARunThatIsMissingIsNamed) {
  {
    OuterStore store(disk, "outer");
    ASSERT_TRUE(store.load(kVoteFile));
    ASSERT_TRUE(store.write_vote(3, Vote{.promised = 5, .accepted = {}}));
  }
  for (const auto* path : {"outer/run", "outer/run.copy"}) ASSERT_TRUE(disk.remove(path));
  const auto loaded = OuterStore(disk, "outer").load(kVoteFile);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::corrupt);
  EXPECT_THAT(loaded.error().text(), HasSubstr("outer/run is missing"));
}

// A crash tore it while the run was being founded: it says nothing of a run, and the other slot has
// the number by which this site is known.
TEST(VoteBeforeTheRunTest, ThatIsTornIsNoRunThatIsLost) {
  sim::SimulatedDisk disk{Random(1)};
  constexpr VoteFileId kNumber = 7, kNewNumber = 8;
  for (int start = 0; start < 2; ++start) {
    OuterStore store(disk, "outer");
    ASSERT_TRUE(store.load(kNumber));
    ASSERT_TRUE(store.write_vote(
        0, Vote{.promised = 0, .accepted = Vote::Accepted{0, genesis_of(7).record}}));
  }
  const auto whole = *read_file(disk, "outer/vote", 1 << 20);
  for (const std::size_t slot : {0, 1}) {
    auto torn = whole;
    torn[(slot << 18) + 600] ^= std::byte{1};  // behind what a disk writes at once
    ASSERT_TRUE(replace_file(disk, "outer/vote", torn));
    const auto loaded = OuterStore(disk, "outer").load(kNewNumber);
    ASSERT_TRUE(loaded) << loaded.error().text();
    EXPECT_FALSE(loaded->genesis);
    EXPECT_EQ(loaded->vote_file, kNumber);
    EXPECT_TRUE(loaded->vote.accepted);
    EXPECT_THAT(loaded->damaged,
                ElementsAre(damaged(fmt::format("slot {} of outer/vote is damaged", slot),
                                    "the other slot counts")));
  }
}

}  // namespace
}  // namespace isthmus::inter

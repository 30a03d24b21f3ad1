// What the simulated disk does to who relies on more than a Disk promises.
#include "inter/sim/simulated_disk.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace isthmus::inter::sim {
namespace {

constexpr std::size_t kBytes = 100 * 512;

Bytes read(Disk& disk, const std::string& path) { return *read_file(disk, path, kBytes); }

// Bytes of the file that are as first written, and as written later.
std::pair<std::size_t, std::size_t> old_and_new(Disk& disk) {
  const auto bytes = read(disk, "folder/file");
  EXPECT_EQ(bytes.size(), kBytes);
  return {std::ranges::count(bytes, std::byte{1}), std::ranges::count(bytes, std::byte{2})};
}

class SimulatedDiskTest : public testing::Test {
 protected:
  void SetUp() override {
    file = *disk.open("folder/file", Disk::Open::create);
    ASSERT_TRUE(file->write_at(0, Bytes(kBytes, std::byte{1})));
    ASSERT_TRUE(file->sync());
    ASSERT_TRUE(disk.sync_folder("folder"));
    ASSERT_TRUE(file->write_at(0, Bytes(kBytes, std::byte{2})));
  }
  SimulatedDisk disk{Random(1)};
  std::unique_ptr<File> file;
};

TEST_F(SimulatedDiskTest, KeepsWhatWasSynced) {
  ASSERT_TRUE(file->sync());
  disk.crash();
  EXPECT_EQ(old_and_new(disk), std::pair(std::size_t{0}, kBytes));
}

TEST_F(SimulatedDiskTest, TearsWhatWasNotSynced) {
  EXPECT_EQ(old_and_new(disk).second, kBytes);
  disk.crash();
  const auto [older, newer] = old_and_new(disk);
  EXPECT_GT(older, 0U);
  EXPECT_GT(newer, 0U);
  EXPECT_EQ(older + newer, kBytes);
}

TEST_F(SimulatedDiskTest, AFailedSyncLosesSomeForGood) {
  disk.set_faults({.lying = false, .failing = 1});
  EXPECT_FALSE(file->sync());
  disk.set_faults({});
  const auto after = old_and_new(disk);
  EXPECT_GT(after.first, 0U) << "lost without any crash";
  EXPECT_GT(after.second, 0U);
  // A sync that succeeds later says nothing about what the failed one lost.
  ASSERT_TRUE(file->sync());
  EXPECT_EQ(old_and_new(disk), after);
  disk.crash();
  EXPECT_EQ(old_and_new(disk), after);
  EXPECT_EQ(disk.counters().failed_syncs, 1U);
}

TEST_F(SimulatedDiskTest, NothingIsCutOffOnceTheProcessCrashesOrTheDiskIsFull) {
  disk.set_faults({.lying = false, .failing = 1});
  EXPECT_EQ(file->truncate(512).error().code, ErrorCode::disk_full);
  disk.set_faults({});
  disk.freeze();
  EXPECT_EQ(file->truncate(512).error().code, ErrorCode::io);
  EXPECT_EQ(*file->size(), kBytes);
  disk.crash();
  EXPECT_EQ(read(disk, "folder/file").size(), kBytes);
  ASSERT_TRUE(file->truncate(512));
  EXPECT_EQ(*file->size(), 512U);
}

TEST_F(SimulatedDiskTest, ALyingDiskForgets) {
  disk.set_faults({.lying = true, .failing = 0});
  EXPECT_TRUE(file->sync());
  disk.crash();
  EXPECT_GT(old_and_new(disk).first, 0U);
}

}  // namespace
}  // namespace isthmus::inter::sim

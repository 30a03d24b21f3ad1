// What the simulated disk does to who relies on more than a Disk promises.
#include "inter/sim/simulated_disk.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "inter/sim/simulation.h"

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
  void SetUp() override { begin_again(); }
  // Of one content all is kept, and of a later one nothing.
  void begin_again() {
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

TEST_F(SimulatedDiskTest, OfAKilledProcessAllStaysReadableAndNothingIsKept) {
  const auto newer = [](int i) { return fmt::format("folder/newer{}", i); };
  constexpr int kNames = 20;
  for (int i = 0; i < kNames; ++i) {
    ASSERT_TRUE(disk.open("folder/new", Disk::Open::create));
    ASSERT_TRUE(disk.rename("folder/new", newer(i)));
  }
  const auto held = disk.lock("lock");
  const auto renamed = [&] {
    int names = 0;
    for (int i = 0; i < kNames; ++i) names += *disk.exists(newer(i));
    return names;
  };
  for (int kills = 0; kills < 3; ++kills) {
    disk.kill_process();
    EXPECT_EQ(old_and_new(disk).second, kBytes);
    EXPECT_EQ(renamed(), kNames);
    EXPECT_TRUE(disk.lock("lock"));
  }
  disk.crash();
  EXPECT_GT(old_and_new(disk).first, 0U);
  EXPECT_GT(renamed(), 0);
  EXPECT_LT(renamed(), kNames);
}

TEST_F(SimulatedDiskTest, WhatAKilledProcessLeftTheNextOneSyncs) {
  disk.kill_process();
  ASSERT_TRUE((*disk.open("folder/file", Disk::Open::update))->sync());
  disk.crash();
  EXPECT_EQ(old_and_new(disk), std::pair(std::size_t{0}, kBytes));
}

TEST_F(SimulatedDiskTest, AFailedSyncLosesSomeForGood) {
  int at_once = 0;
  constexpr int kTimes = 20;
  for (int i = 0; i < kTimes; ++i) {
    const auto failed = disk.counters().failed_syncs;
    disk.set_faults({.failing = 1});
    EXPECT_FALSE(file->sync());
    disk.set_faults({});
    EXPECT_EQ(disk.counters().failed_syncs, failed + 1);
    const auto before = old_and_new(disk);
    EXPECT_GT(before.second, 0U);
    at_once += before.first > 0;
    // A sync that succeeds later says nothing about what the failed one lost, in any process.
    ASSERT_TRUE(file->sync());
    disk.kill_process();
    ASSERT_TRUE((*disk.open("folder/file", Disk::Open::update))->sync());
    EXPECT_EQ(old_and_new(disk), before) << "as long as the machine runs";
    disk.crash();
    const auto after = old_and_new(disk);
    EXPECT_GT(after.first, kBytes / 3) << "half of it was lost, and no less";
    EXPECT_GT(after.second, kBytes / 3);
    begin_again();
  }
  EXPECT_GT(at_once, 0);
  EXPECT_LT(at_once, kTimes);
}

TEST_F(SimulatedDiskTest, WhatAFailedSyncLostIsKeptOnceItIsWrittenAnew) {
  for (int i = 0; i < 20; ++i) {
    disk.set_faults({.failing = 1});
    EXPECT_FALSE(file->sync());
    disk.set_faults({});
    ASSERT_TRUE(file->write_at(0, Bytes(kBytes, std::byte{2})));
    ASSERT_TRUE(file->sync());
    disk.crash();
    EXPECT_EQ(old_and_new(disk), std::pair(std::size_t{0}, kBytes));
    begin_again();
  }
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

TEST_F(SimulatedDiskTest, OfAWriteThatAFullDiskRefusesAPartIsWritten) {
  disk.set_faults({.fits = 700});
  EXPECT_TRUE(file->write_at(0, Bytes(700, std::byte{3})));
  EXPECT_EQ(file->write_at(kBytes, Bytes(701, std::byte{3})).error().code, ErrorCode::disk_full);
  EXPECT_EQ(*file->size(), kBytes + 700);
  disk.set_faults({.fits = 700, .full_for = "other"});
  EXPECT_TRUE(file->write_at(0, Bytes(701, std::byte{3})));
  disk.set_faults({.full_for = "file"});
  EXPECT_FALSE(file->write_at(kBytes, Bytes(1024, std::byte{3})));
  EXPECT_EQ(*file->size(), kBytes + 700);
  disk.set_faults({.failing = 1});
  bool some = false, not_all = false;
  for (int i = 0; i < 20; ++i) {
    const auto size = *file->size();
    EXPECT_FALSE(file->write_at(size, Bytes(8 * 512, std::byte{3})));
    some |= *file->size() > size;
    not_all |= *file->size() < size + 8 * 512;
  }
  EXPECT_TRUE(some && not_all);
}

TEST_F(SimulatedDiskTest, ALyingDiskForgets) {
  disk.set_faults({.lying = true, .failing = 0});
  EXPECT_TRUE(file->sync());
  disk.crash();
  EXPECT_GT(old_and_new(disk).first, 0U);
}

// On a disk that takes its time, what a job asks for.
class SlowDiskTest : public testing::Test {
 protected:
  SlowDiskTest() {
    disk.set_speed({.operation = kMillisecond, .sync = 10 * kMillisecond, .bytes_per_second = 1e6});
  }
  // "first" is synced, then "second".
  void ask_for_two_files() {
    disk.begin_job();
    for (const char* path : {"folder/first", "folder/second"}) {
      auto made = *disk.open(path, Disk::Open::create);
      ASSERT_TRUE(made->write_at(0, Bytes(1000, std::byte{1})));
      ASSERT_TRUE(made->sync());
      ASSERT_TRUE(disk.sync_folder("folder"));
    }
    wait = disk.end_job();
  }
  // A file that is kept.
  void file_before() {
    auto file = *disk.open("folder/old", Disk::Open::create);
    ASSERT_TRUE(file->write_at(0, Bytes(1000, std::byte{1})));
    ASSERT_TRUE(file->sync());
    ASSERT_TRUE(disk.sync_folder("folder"));
  }
  std::size_t whole(const std::string& path) {
    const auto bytes = read_file(disk, path, kBytes);
    return bytes ? std::ranges::count(*bytes, std::byte{1}) : 0;
  }

  Simulation simulation;
  SimulatedDisk disk{Random(1), &simulation};
  Nanoseconds wait = 0;
};

TEST_F(SlowDiskTest, TakesItsTimeForEachOperation) {
  ask_for_two_files();
  // A name, 1000 bytes, a sync, a sync of the folder; each twice.
  EXPECT_EQ(wait, 2 * (1 + 2 + 11 + 11) * kMillisecond);
  disk.begin_job();
  EXPECT_EQ(disk.end_job(), 0) << "it asked for nothing";
  disk.begin_job();
  ASSERT_TRUE(disk.sync_folder("folder"));
  EXPECT_EQ(disk.end_job(), wait + 11 * kMillisecond) << "behind what is under way";
  simulation.advance(kSecond);
  disk.set_speed({.operation = 0, .sync = kSecond, .bytes_per_second = 1e6});
  disk.begin_job();
  ASSERT_TRUE(disk.sync_folder("folder"));
  EXPECT_EQ(disk.end_job(), kSecond);
}

TEST_F(SlowDiskTest, ACrashComesBetweenTwoOperations) {
  ask_for_two_files();
  simulation.advance(30 * kMillisecond);  // the first file is there, the second is being written
  disk.crash();
  EXPECT_EQ(whole("folder/first"), 1000U);
  EXPECT_LT(whole("folder/second"), 1000U);
}

TEST_F(SlowDiskTest, WhatHasNotBegunLeavesNoTrace) {
  file_before();
  disk.begin_job();
  auto file = *disk.open("folder/old", Disk::Open::update);
  ASSERT_TRUE(disk.sync_folder("folder"));
  ASSERT_TRUE(file->write_at(500, Bytes(1000, std::byte{2})));
  ASSERT_TRUE(file->truncate(10));
  ASSERT_TRUE(disk.rename("folder/old", "folder/new"));
  disk.crash();
  EXPECT_EQ(whole("folder/old"), 1000U);
  EXPECT_FALSE(*disk.exists("folder/new"));
}

TEST_F(SlowDiskTest, ASyncUnderWayKeepsNothingYet) {
  file_before();
  std::size_t torn = 0;
  for (int i = 0; i < 20; ++i) {
    disk.begin_job();
    auto file = *disk.open("folder/old", Disk::Open::update);
    ASSERT_TRUE(file->write_at(0, Bytes(2000, std::byte{3})));
    ASSERT_TRUE(file->sync());
    simulation.advance(simulation.now() + disk.end_job() - 1);
    disk.crash();
    const auto bytes = read(disk, "folder/old");
    torn += std::ranges::count(bytes, std::byte{3}) < 2000;
    file_before();
  }
  EXPECT_GT(torn, 10U);
}

TEST_F(SlowDiskTest, ASyncThatItsProcessDidNotLiveToSeeKeepsNothingYet) {
  file_before();
  disk.begin_job();
  auto file = *disk.open("folder/old", Disk::Open::update);
  ASSERT_TRUE(file->write_at(0, Bytes(1000, std::byte{3})));
  ASSERT_TRUE(file->sync());
  ASSERT_TRUE(file->write_at(0, Bytes(1000, std::byte{4})));
  simulation.advance(simulation.now() + 5 * kMillisecond);
  disk.kill_process();
  const auto count = [&](int value) {
    return std::ranges::count(read(disk, "folder/old"), static_cast<std::byte>(value));
  };
  EXPECT_EQ(count(3), 1000) << "written, and the next write had not begun";
  simulation.advance(60 * kSecond);
  disk.crash();
  EXPECT_GT(count(1), 0);
}

TEST_F(SlowDiskTest, WhatIsAskedForBetweenJobsIsDoneAfterWhatTheyAskedFor) {
  ask_for_two_files();
  auto third = *disk.open("folder/third", Disk::Open::create);
  ASSERT_TRUE(third->write_at(0, Bytes(1000, std::byte{1})));
  ASSERT_TRUE(third->sync());
  ASSERT_TRUE(disk.sync_folder("folder"));
  simulation.advance(kMillisecond);
  disk.crash();
  for (const char* path : {"folder/first", "folder/second", "folder/third"})
    EXPECT_EQ(whole(path), 1000U) << path;
}

// A process that dies at a named point of its job has done what came before.
TEST_F(SlowDiskTest, WhatCameBeforeANamedPointIsDone) {
  disk.begin_job();
  auto file = *disk.open("folder/file", Disk::Open::create);
  ASSERT_TRUE(file->write_at(0, Bytes(1000, std::byte{1})));
  ASSERT_TRUE(file->sync());
  ASSERT_TRUE(disk.sync_folder("folder"));
  disk.freeze();
  EXPECT_FALSE(file->write_at(0, Bytes(1000, std::byte{2})));
  disk.crash();
  EXPECT_EQ(whole("folder/file"), 1000U);
}

}  // namespace
}  // namespace isthmus::inter::sim

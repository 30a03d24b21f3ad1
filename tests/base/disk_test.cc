#include "base/disk.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/base/passing_disk.h"
#include "tests/base/temporary_folder.h"

namespace isthmus {
namespace {

class DiskTest : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }
  std::string contents(const std::string& name) const {
    const auto bytes = read_file(*disk_, path(name), 1 << 20);
    EXPECT_TRUE(bytes) << (bytes ? "" : bytes.error().text());
    return bytes ? std::string(text_of(*bytes)) : "";
  }
  void write(const std::string& name, std::string_view text) {
    std::ofstream(path(name), std::ios::binary) << text;
  }

  std::unique_ptr<Disk> disk_ = make_system_disk();
  const TemporaryFolder folder_;
};

TEST_F(DiskTest, WritesAndReadsAtOffsets) {
  auto file = disk_->open(path("a"), Disk::Open::create);
  ASSERT_TRUE(file);
  ASSERT_TRUE((*file)->write_at(4, bytes_of("efgh")));  // beyond the end: grows, with zeros
  ASSERT_TRUE((*file)->write_at(0, bytes_of("ab")));
  EXPECT_EQ((*file)->size().value(), 8u);
  ASSERT_TRUE((*file)->sync());
  EXPECT_EQ(contents("a"), std::string("ab\0\0efgh", 8));

  Bytes middle(3);
  ASSERT_TRUE((*file)->read_at(3, middle));
  EXPECT_EQ(text_of(middle), std::string_view("\0ef", 3));
  ASSERT_TRUE((*file)->truncate(5));
  EXPECT_EQ(contents("a"), std::string("ab\0\0e", 5));
}

TEST_F(DiskTest, ReadingPastTheEndIsCorrupt) {
  write("a", "abc");
  const auto file = disk_->open(path("a"), Disk::Open::read);
  ASSERT_TRUE(file);
  Bytes four(4), one(1);
  EXPECT_EQ((*file)->read_at(0, four).error().code, ErrorCode::corrupt);
  EXPECT_EQ((*file)->read_at(3, one).error().code, ErrorCode::corrupt);
  EXPECT_TRUE((*file)->read_at(3, {}));
}

TEST_F(DiskTest, CreateMakesANewFileAndLeavesTheOldOneToItsReaders) {
  write("a", "old");
  const auto reader = disk_->open(path("a"), Disk::Open::read);
  ASSERT_TRUE(reader);
  auto writer = disk_->open(path("a"), Disk::Open::create);
  ASSERT_TRUE(writer);
  ASSERT_TRUE((*writer)->write_at(0, bytes_of("new!")));
  Bytes bytes(3);
  ASSERT_TRUE((*reader)->read_at(0, bytes));
  EXPECT_EQ(text_of(bytes), "old");
  EXPECT_EQ(contents("a"), "new!");
}

TEST_F(DiskTest, UpdateKeepsTheContentsAndNeedsAFile) {
  EXPECT_EQ(disk_->open(path("a"), Disk::Open::update).error().code, ErrorCode::not_found);
  write("a", "abc");
  auto file = disk_->open(path("a"), Disk::Open::update);
  ASSERT_TRUE(file);
  ASSERT_TRUE((*file)->write_at(1, bytes_of("B")));
  EXPECT_EQ(contents("a"), "aBc");
}

// Neither can be read later, so nobody should try again.
TEST_F(DiskTest, AFolderIsNoFileAndAFileNoFolder) {
  ASSERT_TRUE(std::filesystem::create_directory(path("folder")));
  write("file", "abc");
  for (const auto how :
       {Disk::Open::read, Disk::Open::update, Disk::Open::overwrite, Disk::Open::create}) {
    const auto opened = disk_->open(path("folder"), how);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, ErrorCode::wrong_kind);
    EXPECT_NE(opened.error().text().find("move it away"), std::string::npos);
  }
  for (const auto* name : {"file", "file/below"}) {
    const auto made = disk_->make_folders(path(name));
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, ErrorCode::wrong_kind);
    EXPECT_NE(made.error().text().find("/file is a file where a folder"), std::string::npos);
  }
}

TEST_F(DiskTest, APipeIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const auto opened = disk_->open(path("pipe"), Disk::Open::read);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::wrong_kind);
  EXPECT_NE(opened.error().text().find("/pipe is no file"), std::string::npos);
}

TEST_F(DiskTest, OverwriteKeepsTheContentsAndMakesAFileWhereNoneIs) {
  auto fresh = disk_->open(path("a"), Disk::Open::overwrite);
  ASSERT_TRUE(fresh);
  ASSERT_TRUE((*fresh)->write_at(0, bytes_of("abc")));
  auto again = disk_->open(path("a"), Disk::Open::overwrite);
  ASSERT_TRUE(again);
  ASSERT_TRUE((*again)->write_at(1, bytes_of("B")));
  EXPECT_EQ(contents("a"), "aBc");
}

TEST_F(DiskTest, ALinkStaysAndWhatItNamesIsReplaced) {
  write("target", "old");
  ASSERT_EQ(::symlink("target", path("link").c_str()), 0);
  ASSERT_TRUE(replace_file(*disk_, path("link"), bytes_of("new")));
  EXPECT_EQ(contents("target"), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
  ASSERT_TRUE(disk_->open(path("link"), Disk::Open::create));
  EXPECT_EQ(contents("target"), "");
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
  ASSERT_EQ(::symlink("nothing", path("dangling").c_str()), 0);
  EXPECT_EQ(replace_file(*disk_, path("dangling"), bytes_of("new")).error().code,
            ErrorCode::not_found);
}

// As root /dev/null could be.
TEST_F(DiskTest, WhatIsNoFileIsNotReplaced) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(replace_file(*disk_, path("pipe"), bytes_of("new")).error().code,
            ErrorCode::invalid_argument);
  EXPECT_EQ(disk_->open(path("pipe"), Disk::Open::create).error().code,
            ErrorCode::invalid_argument);
  EXPECT_TRUE(std::filesystem::is_fifo(path("pipe")));
  EXPECT_FALSE(disk_->exists(path("pipe.new")).value()) << "left behind";
}

TEST_F(DiskTest, WhatIsNotThereIsNotFound) {
  EXPECT_EQ(disk_->open(path("no"), Disk::Open::read).error().code, ErrorCode::not_found);
  EXPECT_EQ(read_file(*disk_, path("no"), 10).error().code, ErrorCode::not_found);
  EXPECT_EQ(disk_->list(path("no")).error().code, ErrorCode::not_found);
  EXPECT_EQ(disk_->rename(path("no"), path("b")).error().code, ErrorCode::not_found);
  EXPECT_EQ(disk_->sync_folder(path("no")).error().code, ErrorCode::not_found);
  EXPECT_TRUE(disk_->remove(path("no")));
  EXPECT_FALSE(disk_->exists(path("no")).value());
  write("file", "");
  EXPECT_FALSE(disk_->exists(path("file/below")).value());
}

TEST_F(DiskTest, ErrorsNameThePath) {
  EXPECT_NE(disk_->open(path("no"), Disk::Open::read).error().text().find(path("no")),
            std::string::npos);
}

TEST_F(DiskTest, ListsNamesInOrder) {
  for (const auto* name : {"b", "a", "B", "10", "9"}) write(name, "");
  EXPECT_EQ(disk_->list(folder_.path()).value(),
            (std::vector<std::string>{"10", "9", "B", "a", "b"}));
}

TEST_F(DiskTest, MakesFoldersAtAnyDepthTwice) {
  ASSERT_TRUE(disk_->make_folders(path("x/y/z")));
  ASSERT_TRUE(disk_->make_folders(path("x/y/z")));
  EXPECT_TRUE(disk_->exists(path("x/y/z")).value());
  EXPECT_TRUE(disk_->sync_folder(path("x/y")));
  write("file", "");
  EXPECT_FALSE(disk_->make_folders(path("file/below")));
}

TEST_F(DiskTest, ReadFileRefusesWhatIsLargerThanAllowed) {
  write("a", "abcd");
  EXPECT_EQ(read_file(*disk_, path("a"), 4).value().size(), 4u);
  EXPECT_EQ(read_file(*disk_, path("a"), 3).error().code, ErrorCode::too_large);
}

TEST_F(DiskTest, ReplaceFileLeavesOnlyTheNewOne) {
  ASSERT_TRUE(replace_file(*disk_, path("a"), bytes_of("one")));
  EXPECT_EQ(contents("a"), "one");
  ASSERT_TRUE(replace_file(*disk_, path("a"), bytes_of("second")));
  EXPECT_EQ(contents("a"), "second");
  EXPECT_EQ(disk_->list(folder_.path()).value(), std::vector<std::string>{"a"});
}

TEST_F(DiskTest, ReplaceFileThatFailsKeepsTheOldOne) {
  write("a", "old");
  std::filesystem::create_directory(path("a.new"));  // the temporary name is taken by a folder
  EXPECT_FALSE(replace_file(*disk_, path("a"), bytes_of("new")));
  EXPECT_EQ(contents("a"), "old");
}

// A disk that notes the calls that order a replacement.
class NotingDisk final : public PassingDisk {
 public:
  NotingDisk(std::shared_ptr<Disk> disk, std::vector<std::string>& calls)
      : PassingDisk(std::move(disk)), calls_(calls) {}
  Result<std::unique_ptr<File>> open(const std::string& path, Open how) override {
    ISTHMUS_TRY(auto file, PassingDisk::open(path, how));
    return std::unique_ptr<File>(std::make_unique<NotingFile>(std::move(file), calls_));
  }
  Result<void> rename(const std::string& from, const std::string& to) override {
    calls_.push_back("rename");
    return PassingDisk::rename(from, to);
  }
  Result<void> sync_folder(const std::string& path) override {
    calls_.push_back("sync_folder " + path);
    return PassingDisk::sync_folder(path);
  }

 private:
  class NotingFile final : public PassingFile {
   public:
    NotingFile(std::unique_ptr<File> file, std::vector<std::string>& calls)
        : PassingFile(std::move(file)), calls_(calls) {}
    Result<void> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
      calls_.push_back("write");
      return PassingFile::write_at(offset, bytes);
    }
    Result<void> sync() override {
      calls_.push_back("sync");
      return PassingFile::sync();
    }

   private:
    std::vector<std::string>& calls_;
  };

  std::vector<std::string>& calls_;
};

TEST_F(DiskTest, ReplaceFileSyncsBeforeItRenamesAndTheFolderAfter) {
  std::vector<std::string> calls;
  NotingDisk noting(std::move(disk_), calls);
  ASSERT_TRUE(replace_file(noting, path("a"), bytes_of("x")));
  EXPECT_EQ(calls,
            (std::vector<std::string>{"write", "sync", "rename", "sync_folder " + folder_.path()}));
}

TEST_F(DiskTest, ALockIsHeldOnce) {
  auto first = disk_->lock(path("lock"));
  ASSERT_TRUE(first);
  const auto second = disk_->lock(path("lock"));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::busy);
  first->reset();
  EXPECT_TRUE(disk_->lock(path("lock")));
}

TEST_F(DiskTest, ALockHoldsBetweenProcessesAndDiesWithItsHolder) {
  int ready[2], go[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(go), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto lock = make_system_disk()->lock(path("lock"));
    const char held = lock ? 'y' : 'n';
    [[maybe_unused]] auto n = ::write(ready[1], &held, 1);
    char c;
    n = ::read(go[0], &c, 1);  // until it is killed
    ::_exit(0);
  }
  char held = 0;
  ASSERT_EQ(::read(ready[0], &held, 1), 1);
  ASSERT_EQ(held, 'y');
  EXPECT_EQ(disk_->lock(path("lock")).error().code, ErrorCode::busy);
  ::kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(disk_->lock(path("lock")));
  for (const int fd : {ready[0], ready[1], go[0], go[1]}) ::close(fd);
}

TEST_F(DiskTest, AFullDiskSaysSo) {
  auto full = disk_->open("/dev/full", Disk::Open::update);
  if (!full) GTEST_SKIP() << "no /dev/full on this machine";
  const auto written = (*full)->write_at(0, bytes_of("x"));
  EXPECT_EQ(written.error().code, ErrorCode::disk_full);
  EXPECT_NE(written.error().text().find("free some on its file system"), std::string::npos);
}

TEST(Paths, FolderOfIsWhatStandsBeforeTheLastSlash) {
  EXPECT_EQ(folder_of("a/b/c"), "a/b");
  EXPECT_EQ(folder_of("c"), "");
  EXPECT_EQ(folder_of("/c"), "/");
  EXPECT_EQ(folder_of("/a/b"), "/a");
}

}  // namespace
}  // namespace isthmus

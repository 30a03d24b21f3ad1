// What a ContributionStore does where a disk is full, and with files that another one replaces.
#include "inter/contribution_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <utility>

#include "inter/sim/simulated_disk.h"
#include "inter/sim/simulated_keys.h"
#include "tests/base/temporary_folder.h"

namespace isthmus::inter {
namespace {

constexpr std::uint64_t kStep = 3;
constexpr SiteId kOwner = 1;

Signed announcement() {
  return sign(sim::SimulatedSigner(kOwner), kOwner, MessageType::open, encode(Open{}));
}

Signed close_message() {
  return sign(sim::SimulatedSigner(kOwner), kOwner, MessageType::close, encode(Close{}));
}

// Of one block of the file each.
std::vector<StoredChunk> chunks(std::uint32_t count) {
  std::vector<StoredChunk> all;
  for (std::uint32_t i = 0; i < count; ++i)
    all.emplace_back(i, Bytes(4000, static_cast<std::byte>(i + 1)));
  return all;
}

class NoRoomTest : public testing::Test {
 protected:
  std::uint64_t size() {
    return *(*disk.open("contributions/00000003-1", Disk::Open::read))->size();
  }
  void expect_stored(const std::vector<std::uint32_t>& indices) {
    const auto stored = store.read(kStep, kOwner);
    ASSERT_TRUE(stored) << stored.error().text();
    std::vector<std::uint32_t> found;
    for (const auto& [index, bytes] : stored->chunks) {
      found.push_back(index);
      EXPECT_EQ(std::ranges::count(bytes.bytes(), static_cast<std::byte>(index + 1)), 4000);
    }
    EXPECT_EQ(found, indices);
    EXPECT_EQ(stored->bytes, size());
  }

  sim::SimulatedDisk disk{Random(1)};
  ContributionStore store{disk, "contributions"};
};

// The part of it that was written would take the room that single chunks still find.
TEST_F(NoRoomTest, AWriteThatDoesNotFitLeavesNothing) {
  const auto file = *store.create(kStep, announcement());
  const auto all = chunks(4);
  ASSERT_TRUE(file->add(std::span(all).first(1)));
  const auto before = size();
  disk.set_faults({.fits = 5000});
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(file->add(std::span(all).subspan(1)).error().code, ErrorCode::disk_full);
  EXPECT_EQ(size(), before);
  ASSERT_TRUE(file->add(std::span(all).subspan(2, 1)));
  expect_stored({0, 2});
}

// A file of which the first write fails, after something else was written behind it.
class FirstWriteFails final : public File {
 public:
  explicit FirstWriteFails(std::unique_ptr<File> file) : file_(std::move(file)) {}
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    return file_->read_at(offset, out);
  }
  Result<void> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
    if (!meanwhile) return file_->write_at(offset, bytes);
    std::exchange(meanwhile, {})();
    return Error{ErrorCode::disk_full, "no room"};
  }
  Result<void> truncate(std::uint64_t bytes) override { return file_->truncate(bytes); }
  Result<std::uint64_t> size() const override { return file_->size(); }
  Result<void> sync() override { return file_->sync(); }

  std::function<void()> meanwhile;

 private:
  std::unique_ptr<File> file_;
};

// Two threads write to it at a time.
TEST_F(NoRoomTest, AWriteWithAnotherBehindItLeavesAHoleThatIsReadOver) {
  const auto all = chunks(4);
  ASSERT_TRUE((*store.create(kStep, announcement()))->add(std::span(all).first(1)));
  auto failing =
      std::make_unique<FirstWriteFails>(*disk.open("contributions/00000003-1", Disk::Open::update));
  auto& first = failing->meanwhile;
  ContributionFile file(disk, "contributions", std::move(failing), size());
  first = [&] { ASSERT_TRUE(file.add(std::span(all).subspan(2, 1))); };
  EXPECT_EQ(file.add(std::span(all).subspan(1, 1)).error().code, ErrorCode::disk_full);
  ASSERT_TRUE(file.add(std::span(all).subspan(3, 1)));
  expect_stored({0, 2, 3});
}

TEST_F(NoRoomTest, ACloseThatDoesNotFitLeavesNothing) {
  const auto all = chunks(1);
  ASSERT_TRUE((*store.create(kStep, announcement()))->add(all));
  disk.set_faults({.fits = 100});
  EXPECT_FALSE(store.append_close(kStep, close_message()));
  disk.set_faults({});
  ASSERT_TRUE(store.append_close(kStep, close_message()));
  expect_stored({0});
  EXPECT_TRUE(store.read(kStep, kOwner)->close);
}

// The system frees the blocks of a file when the last one closes it: who makes the new one is the
// owner's thread, who writes to it is a worker's.
TEST(ReplacedContributionTest, LivesUntilTheFirstWriteToTheNewOne) {
  const TemporaryFolder temporary;
  const std::filesystem::path folder = temporary / "contributions";
  std::filesystem::create_directory(folder);
  const auto without_a_name = [&] {
    int count = 0;
    for (const auto& descriptor : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;  // the one that lists them
      const auto target = std::filesystem::read_symlink(descriptor, error).string();
      count += target.starts_with(folder.string()) && target.ends_with(" (deleted)");
    }
    return count;
  };
  const auto disk = make_system_disk();
  ContributionStore store(*disk, folder.string());
  const auto all = chunks(2);
  auto file = *store.create(kStep, announcement());
  ASSERT_TRUE(file->add(all));
  file.reset();
  file = *store.create(kStep, announcement());
  EXPECT_EQ(without_a_name(), 1);
  ASSERT_TRUE(file->add(std::span(all).first(1)));
  EXPECT_EQ(without_a_name(), 0);
  EXPECT_EQ(store.read(kStep, kOwner)->chunks.size(), 1U);
  file = *store.create(kStep, announcement());
  file.reset();  // of which nothing came
  EXPECT_EQ(without_a_name(), 0);
}

}  // namespace
}  // namespace isthmus::inter

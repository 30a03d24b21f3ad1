#include "runtime/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "runtime/checkpoint_folder.h"
#include "runtime/model_directory.h"
#include "tests/base/passing_disk.h"
#include "tests/base/temporary_folder.h"
#include "tests/runtime/small_model.h"

namespace isthmus::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// So many bytes of files in a folder, and no more.
class SmallDisk final : public PassingDisk {
 public:
  SmallDisk(std::unique_ptr<Disk> disk, std::string folder, std::uint64_t bytes)
      : PassingDisk(std::move(disk)), folder_(std::move(folder)), bytes_(bytes) {}

  Result<std::unique_ptr<File>> open(const std::string& path, Open how) override {
    ISTHMUS_TRY(auto file, PassingDisk::open(path, how));
    return std::unique_ptr<File>(std::make_unique<SmallFile>(std::move(file), *this));
  }

  static std::uint64_t used(const std::string& folder) {
    std::uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
      if (entry.is_regular_file()) bytes += entry.file_size();
    return bytes;
  }

 private:
  class SmallFile final : public PassingFile {
   public:
    SmallFile(std::unique_ptr<File> file, const SmallDisk& disk)
        : PassingFile(std::move(file)), disk_(disk) {}
    Result<void> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
      ISTHMUS_TRY(const auto size, this->size());
      const auto end = offset + bytes.size();
      if (end > size && used(disk_.folder_) + end - size > disk_.bytes_)
        return Error{ErrorCode::disk_full, "no room"};
      return PassingFile::write_at(offset, bytes);
    }

   private:
    const SmallDisk& disk_;
  };

  const std::string folder_;
  const std::uint64_t bytes_;
};

// What is written cannot get its name.
class NamelessDisk final : public PassingDisk {
 public:
  using PassingDisk::PassingDisk;
  Result<void> rename(const std::string& from, const std::string& to) override {
    if (to.substr(to.rfind('/') + 1).starts_with("step_"))
      return Error{ErrorCode::io, "cannot name " + to};
    return PassingDisk::rename(from, to);
  }
};

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    log_.add(make_callback_sink([this](const Event& event) { events_.push_back(to_json(event)); }));
    fill(*model_, 1);
  }

  // Parameters and optimizer state that differ in every element.
  static void fill(Model& model, std::uint64_t seed) {
    Random random(seed);
    for (std::size_t i = 0; i < model.tensors().size(); ++i)
      for (const auto slice :
           {model.parameters(i), model.first_moments(i), model.second_moments(i)})
        for (auto& x : slice) x = static_cast<float>(random.normal());
    model.set_updates(static_cast<std::int64_t>(seed) + 10);
    model.parameters_changed();
  }
  static std::vector<float> everything(Model& model) {
    std::vector<float> all;
    for (const auto buffer : {model.parameters(), model.first_moments(), model.second_moments()})
      all.insert(all.end(), buffer.begin(), buffer.end());
    all.push_back(static_cast<float>(model.updates()));
    return all;
  }
  static Progress progress(std::int64_t step) {
    return {.inner_step = step,
            .data_position = static_cast<std::uint64_t>(step) * 8,
            .tokens = 12345678901234,
            .seed = 18446744073709551615U,
            .data_digest = "abc",
            .outer_step = 3,
            .record = "def",
            .run = "ghi",
            .steps_since = 4,
            .tokens_since = 5,
            .handed_steps = 6,
            .handed_tokens = 7};
  }
  std::string write(std::int64_t step, int keep = 10) {
    auto path = write_checkpoint(*disk_, folder_.path(), *model_, progress(step), keep);
    EXPECT_TRUE(path) << path.error().text();
    return *path;
  }
  void flip_byte(const std::string& path, std::size_t at) {
    auto bytes = contents_of(path);
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    write_contents(path, bytes);
  }
  std::vector<std::string> names() {
    auto listed = disk_->list(folder_.path());
    EXPECT_TRUE(listed);
    return *listed;
  }

  TemporaryFolder folder_;
  std::unique_ptr<Disk> disk_ = make_system_disk();
  std::unique_ptr<Clock> clock_ = make_system_clock();
  EventLog log_{*clock_, "alpha"};
  std::vector<std::string> events_;
  ThreadPool pool_{{-1}};
  std::unique_ptr<Model> model_ = make_small_model(pool_);
};

TEST_F(CheckpointTest, ComesBackToTheBit) {
  const auto path = write(7);
  EXPECT_THAT(path, HasSubstr("step_00000007"));
  const auto before = everything(*model_);
  fill(*model_, 2);
  const auto loaded = load_checkpoint(*disk_, path, *model_);
  ASSERT_TRUE(loaded) << loaded.error().text();
  EXPECT_EQ(*loaded, progress(7));
  EXPECT_EQ(everything(*model_), before);
}

TEST_F(CheckpointTest, HasTheFilesAndNothingHidden) {
  const auto path = write(7);
  EXPECT_THAT(*disk_->list(path), ElementsAre("config.json", "model.safetensors",
                                              "optimizer.safetensors", "trainer.json"));
  EXPECT_THAT(names(), ElementsAre("step_00000007"));
}

TEST_F(CheckpointTest, EqualStateGivesEqualFiles) {
  const auto path = write(7);
  std::vector<std::string> before;
  const auto files = *disk_->list(path);
  for (const auto& file : files) before.push_back(contents_of(path + "/" + file));
  std::filesystem::remove_all(path);
  write(7);
  for (std::size_t i = 0; i < files.size(); ++i)
    EXPECT_EQ(contents_of(path + "/" + files[i]), before[i]) << files[i];
}

TEST_F(CheckpointTest, KeepsTheNewest) {
  for (const std::int64_t step : {5, 10, 15, 20}) write(step, 2);
  EXPECT_THAT(names(), ElementsAre("step_00000015", "step_00000020"));
  EXPECT_THAT(*list_checkpoints(*disk_, folder_.path()), ElementsAre(15, 20));
  write(100'000'000, 2);  // a longer name sorts by number
  EXPECT_THAT(*list_checkpoints(*disk_, folder_.path()), ElementsAre(20, 100'000'000));
}

TEST_F(CheckpointTest, ListsNothingWhereThereIsNothing) {
  EXPECT_THAT(*list_checkpoints(*disk_, folder_ / "none"), IsEmpty());
  std::filesystem::create_directories(folder_ / "step_12x");
  std::filesystem::create_directories(folder_ / "other");
  EXPECT_THAT(*list_checkpoints(*disk_, folder_.path()), IsEmpty());
  const auto none = load_newest_checkpoint(*disk_, folder_.path(), *model_, log_);
  ASSERT_TRUE(none);
  EXPECT_FALSE(none->has_value());
}

TEST_F(CheckpointTest, WhatItWasTrainedOnIsThereUntilItIsForgotten) {
  const auto elements = model_->parameters().size();
  const TrainedOn written{.base = std::vector<float>(elements, 0.5F),
                          .contributed = std::vector<float>(elements, -2.0F)};
  const auto read = [&] {
    auto found = read_trained_on(*disk_, folder_.path(), 7, *model_, log_);
    EXPECT_TRUE(found) << found.error().text();
    return std::move(*found);
  };
  const auto path = write(7);
  EXPECT_TRUE(read().empty());
  // The same progress, but not the same checkpoint.
  ASSERT_TRUE(write_checkpoint(*disk_, folder_.path(), *model_, progress(7), 2, written));
  ASSERT_TRUE(load_checkpoint(*disk_, path, *model_));
  EXPECT_EQ(read().base, written.base);
  EXPECT_EQ(read().contributed, written.contributed);
  EXPECT_THAT(events_, IsEmpty());
  // Damaged it is of no use, but all else is.
  flip_byte(path + "/trained_on.safetensors", 1000);
  ASSERT_TRUE(load_checkpoint(*disk_, path, *model_));
  EXPECT_TRUE(read().empty());
  ASSERT_EQ(events_.size(), 1U);
  EXPECT_THAT(events_[0], HasSubstr("trained_on.safetensors is damaged"));
  ASSERT_TRUE(forget_trained_on(*disk_, folder_.path(), 7));
  ASSERT_TRUE(forget_trained_on(*disk_, folder_.path(), 7));  // once is enough
  ASSERT_TRUE(load_checkpoint(*disk_, path, *model_));
  EXPECT_TRUE(read().empty());
  const TrainedOn one{.base = {}, .contributed = written.contributed};
  ASSERT_TRUE(write_checkpoint(*disk_, folder_.path(), *model_, progress(7), 2, one));
  EXPECT_TRUE(read().base.empty());
  EXPECT_EQ(read().contributed, written.contributed);
}

TEST_F(CheckpointTest, TheSameStepAgainReplacesOnlyWhatDiffers) {
  const auto path = write(7);
  fill(*model_, 2);
  ASSERT_TRUE(write_checkpoint(*disk_, folder_.path(), *model_, progress(7), 2));
  fill(*model_, 3);
  ASSERT_TRUE(load_checkpoint(*disk_, path, *model_));
  EXPECT_EQ(model_->updates(), 11);  // the same progress: the first stays

  fill(*model_, 2);
  auto other = progress(7);
  other.outer_step = 4;
  ASSERT_TRUE(write_checkpoint(*disk_, folder_.path(), *model_, other, 2));
  fill(*model_, 3);
  const auto loaded = load_checkpoint(*disk_, path, *model_);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->outer_step, 4U);
  EXPECT_EQ(model_->updates(), 12);
  EXPECT_THAT(names(), ElementsAre("step_00000007"));
}

TEST_F(CheckpointTest, WhatACrashLeftIsNotACheckpointAndIsTidiedUp) {
  std::filesystem::create_directories(folder_ / ".writing_step_00000009");
  write_contents(folder_ / ".writing_step_00000009/model.safetensors", "half");
  std::filesystem::create_directories(folder_ / ".removing_step_00000001");
  EXPECT_THAT(*list_checkpoints(*disk_, folder_.path()), IsEmpty());
  write(9);
  EXPECT_THAT(names(), ElementsAre("step_00000009"));
  fill(*model_, 2);
  EXPECT_TRUE(load_newest_checkpoint(*disk_, folder_.path(), *model_, log_));
}

// A process was killed while it wrote a step that does not come again, and while it removed one, on
// a disk with room for the checkpoints that stay and one more.
TEST_F(CheckpointTest, WhatACrashLeftTakesNoRoomFromTheNext) {
  write(5, 2);
  const auto path = write(10, 2);
  const auto bytes = SmallDisk::used(path);
  for (const char* left : {".writing_step_00000137", ".removing_step_00000001"})
    std::filesystem::copy(path, folder_ / left);
  SmallDisk disk(std::move(disk_), folder_.path(), 3 * bytes + bytes / 8);
  const auto written = write_checkpoint(disk, folder_.path(), *model_, progress(15), 2);
  ASSERT_TRUE(written) << written.error().text();
  EXPECT_THAT(*disk.list(folder_.path()), ElementsAre("step_00000010", "step_00000015"));
}

TEST_F(CheckpointTest, OneThatCannotGetItsNameTakesNoRoom) {
  write(5);
  NamelessDisk disk(std::move(disk_));
  const auto written = write_checkpoint(disk, folder_.path(), *model_, progress(15), 2);
  ASSERT_FALSE(written);
  EXPECT_THAT(written.error().text(), HasSubstr("cannot name"));
  EXPECT_THAT(*disk.list(folder_.path()), ElementsAre("step_00000005"));
}

TEST_F(CheckpointTest, NoticesEveryTruncationAndEveryFlippedBit) {
  const auto path = write(7);
  const auto before = everything(*model_);
  for (const char* name :
       {"config.json", "model.safetensors", "optimizer.safetensors", "trainer.json"}) {
    const auto file = path + "/" + name;
    const auto whole = contents_of(file);
    const auto expect_noticed = [&] {
      const auto loaded = load_checkpoint(*disk_, path, *model_);
      ASSERT_FALSE(loaded);
      EXPECT_EQ(loaded.error().code, ErrorCode::corrupt) << loaded.error().text();
      EXPECT_THAT(loaded.error().text(), HasSubstr(name));
    };
    for (std::size_t i = 0; i < 20; ++i) {
      write_contents(file, whole.substr(0, i * whole.size() / 20));
      expect_noticed();
      write_contents(file, whole);
      // In the JSON files, white space between fields means nothing.
      const auto at = i * whole.size() / 20;
      if (std::isspace(static_cast<unsigned char>(whole[at])) == 0) {
        flip_byte(file, at);
        expect_noticed();
      }
      write_contents(file, whole);
    }
    std::filesystem::remove(file);
    expect_noticed();
    write_contents(file, whole);
  }
  EXPECT_EQ(everything(*model_), before);  // never touched by what was damaged
  EXPECT_TRUE(load_checkpoint(*disk_, path, *model_));
}

TEST_F(CheckpointTest, ADamagedNewestIsSetAsideForTheOneBefore) {
  write(5);
  fill(*model_, 2);
  const auto newest = write(10);
  std::filesystem::resize_file(newest + "/model.safetensors", 1000);
  fill(*model_, 3);
  const auto loaded = load_newest_checkpoint(*disk_, folder_.path(), *model_, log_);
  ASSERT_TRUE(loaded) << loaded.error().text();
  EXPECT_EQ((*loaded)->inner_step, 5);
  EXPECT_EQ(model_->updates(), 11);
  ASSERT_EQ(events_.size(), 1U);
  EXPECT_THAT(events_[0], HasSubstr("checkpoint_damaged"));
  EXPECT_THAT(events_[0], HasSubstr("model.safetensors has 1000 bytes"));
  EXPECT_THAT(names(), ElementsAre("step_00000005", "step_00000010.damaged"));
  write(10);  // the way is free
  EXPECT_TRUE(load_checkpoint(*disk_, newest, *model_));
}

TEST_F(CheckpointTest, WhenAllAreDamagedTheErrorNamesTheNewestAndNothingIsRemoved) {
  for (const std::int64_t step : {5, 10})
    std::filesystem::resize_file(write(step) + "/optimizer.safetensors", 10);
  const auto loaded = load_newest_checkpoint(*disk_, folder_.path(), *model_, log_);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::corrupt);
  EXPECT_THAT(loaded.error().text(), HasSubstr("step_00000010/optimizer.safetensors"));
  EXPECT_THAT(loaded.error().text(), HasSubstr("restore one from a copy"));
  EXPECT_THAT(names(), ElementsAre("step_00000005", "step_00000010"));
}

TEST_F(CheckpointTest, AnotherModelIsRefusedByTheNumberThatDiffers) {
  const auto path = write(7);
  const auto refuse = [&](auto change, std::string_view what) {
    auto config = small_config();
    change(config);
    auto other = make_model(pool_, config, small_shape());
    const auto loaded = load_checkpoint(*disk_, path, *other);
    ASSERT_FALSE(loaded) << what;
    EXPECT_EQ(loaded.error().code, ErrorCode::mismatch);
    EXPECT_THAT(loaded.error().text(), HasSubstr(std::string(what)));
  };
  refuse([](ModelConfig& c) { c.layers = 3; }, "number of layers is 2");
  refuse([](ModelConfig& c) { c.ffn_width = 64; }, "ffn width is 48");
  refuse([](ModelConfig& c) { c.tied = false; }, "tying");
  refuse([](ModelConfig& c) { c.rope_theta = 5e5; }, "rope_theta");
  refuse([](ModelConfig& c) { c.vocabulary = 300; }, "vocabulary is 260");
}

TEST_F(CheckpointTest, OpensTheNewestOfAFolderForEvaluation) {
  write(5);
  fill(*model_, 2);
  write(10);
  for (const auto& path : {folder_.path(), folder_ / "step_00000010"}) {
    auto opened = open_model(*disk_, path, {.micro_batch = 1, .sequence = 8}, pool_);
    ASSERT_TRUE(opened) << opened.error().text();
    for (std::size_t i = 0; i < model_->tensors().size(); ++i)
      EXPECT_TRUE(std::ranges::equal((*opened)->parameters(i), model_->parameters(i)));
  }
  EXPECT_FALSE(open_model(*disk_, folder_ / "none", small_shape(), pool_));
  std::filesystem::resize_file(folder_ / "step_00000010/model.safetensors", 100);
  const auto damaged = open_model(*disk_, folder_.path(), small_shape(), pool_);
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().code, ErrorCode::corrupt);
  EXPECT_THAT(damaged.error().text(),
              HasSubstr("the one before it is " + folder_.path() + "/step_00000005"));
}

// Where a file system cannot exchange two folders, a crash may fall between two renames.
TEST_F(CheckpointTest, OneThatWasAboutToBeReplacedIsTakenUpAgain) {
  const auto path = write(5);
  std::filesystem::rename(path, folder_ / ".writing_step_00000005.old");
  const auto progress = load_newest_checkpoint(*disk_, folder_.path(), *model_, log_);
  ASSERT_TRUE(progress) << progress.error().text();
  ASSERT_TRUE(progress->has_value());
  EXPECT_EQ((*progress)->inner_step, 5);
  EXPECT_TRUE(std::filesystem::exists(path));

  std::filesystem::rename(path, folder_ / ".writing_step_00000005.old");
  write(9);  // whoever tidies up takes it up, too
  EXPECT_THAT(names(), ElementsAre("step_00000005", "step_00000009"));
}

TEST_F(CheckpointTest, TakesParametersThatAreNotANumberForDamage) {
  model_->parameters(0)[3] = std::nanf("");
  const auto path = write(7);
  const auto status = load_parameters(*disk_, path, *model_);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::non_finite);
}

}  // namespace
}  // namespace isthmus::runtime

#include "runtime/checkpoint_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <iterator>
#include <limits>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/checkpoint.h"
#include "runtime/checkpoint_folder.h"
#include "tests/base/passing_disk.h"
#include "tests/runtime/trainer_fixture.h"

namespace isthmus::runtime {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

constexpr std::string_view kOptimizer = "/optimizer.safetensors";
constexpr std::string_view kModel = "/model.safetensors";

// A disk on which one call takes until it is let go: the values of a file, or bringing them to the
// disk.
class GatedDisk final : public PassingDisk {
 public:
  enum class At { nothing, write, sync };

  using PassingDisk::PassingDisk;
  ~GatedDisk() override { let_go(); }

  void hold(At at, std::string_view file = kOptimizer) {
    held_ = file;
    at_ = at;
    gate_ = {};
    open_ = gate_.get_future().share();
  }
  void let_go() {
    if (at_.exchange(At::nothing) != At::nothing) gate_.set_value();
  }
  // From another thread, when whoever does not wait is long past.
  std::future<void> let_go_soon() {
    return std::async(std::launch::async, [this] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      let_go();
    });
  }

  Result<std::unique_ptr<File>> open(const std::string& path, Open how) override {
    ISTHMUS_TRY(auto file, PassingDisk::open(path, how));
    if (how == Open::read || !path.ends_with(held_)) return file;
    return std::unique_ptr<File>(std::make_unique<GatedFile>(std::move(file), *this));
  }

 private:
  class GatedFile final : public PassingFile {
   public:
    GatedFile(std::unique_ptr<File> file, GatedDisk& disk)
        : PassingFile(std::move(file)), disk_(disk) {}
    Result<void> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
      disk_.pass(At::write);
      return PassingFile::write_at(offset, bytes);
    }
    Result<void> sync() override {
      disk_.pass(At::sync);
      return PassingFile::sync();
    }

   private:
    GatedDisk& disk_;
  };

  // Whoever is to let it go may be who waits for it.
  void pass(At at) {
    if (at_ != at || open_.wait_for(std::chrono::seconds(10)) == std::future_status::ready) return;
    ADD_FAILURE() << "training waits for the disk";
    let_go();
  }

  std::string_view held_ = kOptimizer;
  std::atomic<At> at_{At::nothing};
  std::promise<void> gate_;
  std::shared_future<void> open_;
};

// Of some steps, or of all.
class NoRoom final : public PassingDisk {
 public:
  explicit NoRoom(std::unique_ptr<Disk> disk, std::string step = "")
      : PassingDisk(std::move(disk)), file_(std::move(step) + std::string(kOptimizer)) {}
  Result<std::unique_ptr<File>> open(const std::string& path, Open how) override {
    if (path.ends_with(file_)) return Error{ErrorCode::disk_full, "no room for " + path};
    return PassingDisk::open(path, how);
  }

 private:
  const std::string file_;
};

class NoMemory final : public PassingDisk {
 public:
  using PassingDisk::PassingDisk;
  Result<void> make_folders(const std::string&) override { throw std::bad_alloc(); }
};

std::ptrdiff_t threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

// New threads cannot be had: none has room for its stack.
class NoThreads {
 public:
  NoThreads() {
    ::pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    ::pthread_attr_init(&huge);
    ::pthread_attr_setstacksize(&huge, std::size_t{1} << 60);
    EXPECT_EQ(::pthread_setattr_default_np(&huge), 0);
    ::pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    EXPECT_EQ(::pthread_setattr_default_np(&before_), 0);
    ::pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_;
};

class CheckpointWriterTest : public TrainerTest {
 protected:
  CheckpointWriterTest() { disk_ = std::make_unique<GatedDisk>(std::move(disk_)); }
  GatedDisk& gated() { return static_cast<GatedDisk&>(*disk_); }
  std::string folder() const { return options_.checkpoint_folder; }
  static std::vector<float> everything(Model& model) {
    std::vector<float> all;
    for (const auto buffer : {model.parameters(), model.first_moments(), model.second_moments()})
      all.insert(all.end(), buffer.begin(), buffer.end());
    return all;
  }
  static void change(Model& model) {
    for (const auto buffer : {model.parameters(), model.first_moments(), model.second_moments()})
      std::ranges::fill(buffer, 0.25F);
    model.set_updates(model.updates() + 1);
  }

  std::unique_ptr<Model> model_ = make_small_model(pool_);
};

TEST_F(CheckpointWriterTest, HoldsWhatWasThereWhenItWasBegun) {
  const auto before = everything(*model_);
  CheckpointWriter writer(*disk_, *clock_, folder(), 2);
  gated().hold(GatedDisk::At::write);
  std::atomic<bool> written = false;
  writer.begin(*model_, {.inner_step = 3});
  auto release = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    written = true;
    gated().let_go();
  });
  writer.wait_until_read();
  EXPECT_TRUE(written) << "the model would have changed under it";
  change(*model_);
  const auto outcome = writer.wait();
  ASSERT_TRUE(outcome && *outcome);
  EXPECT_EQ((*outcome)->checkpoint, folder() + "/step_00000003");
  EXPECT_GE((*outcome)->seconds, 0.05);

  const auto read = make_small_model(pool_, 9);
  const auto progress = load_checkpoint(*disk_, (*outcome)->checkpoint, *read);
  ASSERT_TRUE(progress) << progress.error().text();
  EXPECT_EQ(progress->inner_step, 3);
  EXPECT_EQ(everything(*read), before);
  EXPECT_EQ(read->updates(), 0);
}

TEST_F(CheckpointWriterTest, TheDiskIsNotWaitedFor) {
  CheckpointWriter writer(*disk_, *clock_, folder(), 2);
  gated().hold(GatedDisk::At::sync);
  writer.begin(*model_, {.inner_step = 3});
  writer.wait_until_read();
  EXPECT_FALSE(writer.finished());
  EXPECT_THAT(*list_checkpoints(*disk_, folder()), IsEmpty());  // none that is not on the disk
  gated().let_go();
  const auto outcome = writer.wait();
  EXPECT_TRUE(outcome && *outcome);
  EXPECT_THAT(*list_checkpoints(*disk_, folder()), ElementsAre(3));
  EXPECT_FALSE(writer.finished());  // it is told once
  EXPECT_FALSE(writer.wait());
}

TEST_F(CheckpointWriterTest, WhatGoesWrongIsTold) {
  NoRoom full(std::move(disk_));
  {
    CheckpointWriter writer(full, *clock_, folder(), 2);
    writer.begin(*model_, {.inner_step = 3});
    writer.wait_until_read();
    const auto outcome = writer.wait();
    ASSERT_TRUE(outcome);
    ASSERT_FALSE(*outcome);
    EXPECT_EQ(outcome->error().code, ErrorCode::disk_full);
    writer.begin(*model_, {.inner_step = 4});  // whoever goes away waits for it
  }
  EXPECT_THAT(*list_checkpoints(full, folder()), IsEmpty());
}

TEST_F(CheckpointWriterTest, WithoutAThreadItIsWrittenAtOnce) {
  CheckpointWriter writer(*disk_, *clock_, folder(), 2);
  {
    const NoThreads none;
    writer.begin(*model_, {.inner_step = 3});
  }
  writer.wait_until_read();
  const auto outcome = writer.finished();
  ASSERT_TRUE(outcome && *outcome);
  EXPECT_THAT(*list_checkpoints(*disk_, folder()), ElementsAre(3));
  EXPECT_FALSE(writer.wait());
}

TEST_F(CheckpointWriterTest, WhatIsThrownIsTold) {
  NoMemory disk(std::move(disk_));
  CheckpointWriter writer(disk, *clock_, folder(), 2);
  writer.begin(*model_, {.inner_step = 3});
  writer.wait_until_read();
  const auto outcome = writer.wait();
  ASSERT_TRUE(outcome);
  ASSERT_FALSE(*outcome);
  EXPECT_THAT(outcome->error().text(), HasSubstr("bad_alloc"));
}

// ---- beside training

// Steps are done beside it, and the next checkpoint waits for the last.
TEST_F(CheckpointWriterTest, TrainingGoesOnBesideIt) {
  options_.checkpoint_steps = 5;
  options_.checkpoint_keep = 10;
  options_.steps = 12;
  const auto undisturbed = make_small_model(pool_);
  run_well(*undisturbed);
  const auto expected = contents_of(folder() + "/step_00000005/model.safetensors");
  options_.checkpoint_folder = folder_ / "gated";
  gated().hold(GatedDisk::At::sync);
  int step = 0;
  world_.on_gradients = [&] {
    if (++step == 9) {
      EXPECT_THAT(*list_checkpoints(*disk_, folder()), IsEmpty());
      gated().let_go();
    }
  };
  run_well(*model_);
  EXPECT_GE(step, 12);
  EXPECT_EQ(canonical(*model_), canonical(*undisturbed));
  EXPECT_THAT(*list_checkpoints(*disk_, folder()), ElementsAre(5, 10, 12));
  EXPECT_EQ(contents_of(folder() + "/step_00000005/model.safetensors"), expected);
}

TEST_F(CheckpointWriterTest, TrainingGoesOnWithoutIt) {
  options_.checkpoint_steps = 5;
  options_.steps = 9;
  disk_ = std::make_unique<NoRoom>(std::move(disk_));
  // The failed one of step 5 is over before training is.
  world_.on_gradients = [step = 0, before = std::ptrdiff_t{0}]() mutable {
    if (++step == 5) before = threads();
    while (step == 7 && threads() > before) std::this_thread::yield();
  };
  const auto outcome = run(*model_);
  ASSERT_FALSE(outcome);  // of the last one, there is nothing else to do
  EXPECT_EQ(outcome.error().code, ErrorCode::disk_full);
  ASSERT_THAT(events("checkpoint_failed"), SizeIs(1));
  EXPECT_THAT(events("checkpoint_failed")[0],
              AllOf(HasSubstr("no room"), HasSubstr("the next is due after 5 inner steps")));
  EXPECT_THAT(metrics("inner_step"), SizeIs(9));
}

// Whoever changes the model waits until it is read: the files are those of a run that ended there.
class WaitingTest : public CheckpointWriterTest {
 protected:
  void run_until(std::int64_t step) {
    auto until = options_;
    until.steps = step;
    until.metrics_path = "";
    std::swap(until, options_);
    run_well(*model_);
    std::swap(until, options_);
  }
  std::string file(std::string_view name) {
    return contents_of(folder() + "/" + std::string(name));
  }
};

TEST_F(WaitingTest, AnUpdateWaits) {
  options_.checkpoint_keep = 10;
  run_until(5);
  const auto optimizer = file("step_00000005/optimizer.safetensors");
  const auto trainer = file("step_00000005/trainer.json");
  ASSERT_FALSE(trainer.empty());
  options_.checkpoint_folder = folder_ / "gated";
  gated().hold(GatedDisk::At::write);
  std::future<void> release;
  world_.on_gradients = [&, step = 0]() mutable {
    if (++step == 6) release = gated().let_go_soon();
  };
  const auto again = make_small_model(pool_);
  run_well(*again);
  EXPECT_TRUE(file("step_00000005/optimizer.safetensors") == optimizer);
  EXPECT_TRUE(file("step_00000005/trainer.json") == trainer);
}

TEST_F(WaitingTest, AMergeWaits) {
  options_.checkpoint_steps = 3;
  options_.checkpoint_keep = 10;
  run_until(3);
  const auto parameters = file("step_00000003/model.safetensors");
  ASSERT_FALSE(parameters.empty());
  options_.checkpoint_folder = folder_ / "gated";
  gated().hold(GatedDisk::At::write, kModel);
  std::future<void> release;
  federate();
  gateway_.on_contribute = [this](const Contribution& contribution) {
    auto agreed = contribution.parameters;
    for (auto& x : agreed) x *= 0.5F;
    auto state = state_of(contribution.step, agreed, OuterState::From::contribution);
    state.final_step = contribution.step == 2;
    gateway_.states.push_back(std::move(state));
  };
  gateway_.on_poll = [&] {  // which finds the state
    if (gateway_.contributions.size() == 1) release = gated().let_go_soon();
  };
  const auto again = make_small_model(pool_);
  run_well(*again);
  EXPECT_TRUE(file("step_00000003/model.safetensors") == parameters);
}

// ---- what goes wrong is told in time

TEST_F(CheckpointWriterTest, AFailureIsToldWhileTheGatewayIsWaitedFor) {
  federate();
  options_.checkpoint_steps = 3;
  disk_ = std::make_unique<NoRoom>(std::move(disk_), "step_00000003");
  bool told = false;
  gateway_.on_poll = [&, polls = 0]() mutable {
    told = !events("checkpoint_failed").empty();
    if (gateway_.contributions.empty()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stop_ = told || ++polls == 10'000;
  };
  (void)run(*model_);
  EXPECT_TRUE(told);
}

TEST_F(CheckpointWriterTest, AFailureIsToldWhereTrainingFails) {
  disk_ = std::make_unique<NoRoom>(std::move(disk_), "step_00000005");
  options_.skipped_steps_max = 1;
  world_.on_gradients = [this, step = 0]() mutable {
    if (++step == 6) model_->gradients()[0] = std::numeric_limits<float>::quiet_NaN();
  };
  const auto outcome = run(*model_);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::non_finite);
  EXPECT_THAT(events("checkpoint_failed"), SizeIs(1));
}

TEST_F(CheckpointWriterTest, AfterTheEndNoOtherIsDue) {
  disk_ = std::make_unique<NoRoom>(std::move(disk_));
  options_.steps = 5;
  EXPECT_FALSE(run(*model_));
  ASSERT_THAT(events("checkpoint_failed"), SizeIs(1));
  EXPECT_THAT(events("checkpoint_failed")[0], Not(HasSubstr("is due")));
}

}  // namespace
}  // namespace isthmus::runtime

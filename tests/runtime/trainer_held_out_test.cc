// What a training says of held-out texts on its way, and the checkpoint that is best by them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "runtime/checkpoint.h"
#include "runtime/checkpoint_folder.h"
#include "runtime/trainer.h"
#include "tests/base/passing_disk.h"
#include "tests/runtime/trainer_fixture.h"

namespace isthmus::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

// No room for one step's checkpoint that is written under way.
class NoRoomOnce final : public PassingDisk {
 public:
  NoRoomOnce(std::string step, std::unique_ptr<Disk> disk)
      : PassingDisk(std::move(disk)), file_(std::move(step) + "/optimizer.safetensors") {}

  Result<std::unique_ptr<File>> open(const std::string& path, Open how) override {
    if (how != Open::create || !path.ends_with(file_) || std::exchange(refused_, true))
      return PassingDisk::open(path, how);
    return Error{ErrorCode::disk_full, "no room for " + path};
  }

 private:
  const std::string file_;
  bool refused_ = false;
};

class EvaluatingTrainerTest : public TrainerTest {
 protected:
  EvaluatingTrainerTest() {
    write_contents(folder_ / "held", sample_text(500, 7));
    write_contents(folder_ / "other", sample_text(300, 8));
    options_.evaluate_steps = 2;
    options_.held_out = {{"held", folder_ / "held"}, {"other", folder_ / "other"}};
    options_.evaluation.sequences_max = 5;
  }
  std::vector<std::int64_t> checkpoints() {
    return *list_checkpoints(*disk_, options_.checkpoint_folder);
  }
  // After so many steps of a process parameters are multiplied by what makes any model worse.
  void spoil_after(Model& model, int steps) {
    world_.on_gradients = [&model, steps, step = 0]() mutable {
      if (++step != steps) return;
      for (auto& x : model.parameters()) x *= -30;
      model.parameters_changed();
    };
  }
};

TEST_F(EvaluatingTrainerTest, LossesAreThoseOfTheParametersAtTheStep) {
  auto model = make_small_model(pool_);
  run_well(*model);
  const auto lines = metrics("held_out");
  ASSERT_THAT(lines, SizeIs(12));
  EXPECT_THAT(events("held_out_loss"), SizeIs(12));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["inner_step"], 2 * (i / 2 + 1));
    EXPECT_EQ(lines[i]["text"], options_.held_out[i % 2].name);
    EXPECT_EQ(lines[i]["sequences"], 5);
  }
  EXPECT_GT(lines[0]["bits_per_byte"].get<double>(), lines[10]["bits_per_byte"].get<double>());
  for (const std::size_t text : {0, 1}) {
    const auto loss = held_out_loss(*model, *tokenizer_, *disk_, options_.held_out[text].path,
                                    options_.evaluation);
    ASSERT_TRUE(loss);
    EXPECT_EQ(lines[10 + text]["bits_per_byte"].get<double>(), loss->bits_per_byte);
    EXPECT_EQ(lines[10 + text]["perplexity"].get<double>(), loss->perplexity);
  }
}

TEST_F(EvaluatingTrainerTest, ChangesNothing) {
  auto model = make_small_model(pool_);
  run_well(*model);
  options_.checkpoint_folder = folder_ / "not_looked_at";
  options_.evaluate_steps = 0;
  auto other = make_small_model(pool_);
  run_well(*other);
  EXPECT_EQ(canonical(*model), canonical(*other));
}

TEST_F(EvaluatingTrainerTest, TheBestCheckpointStays) {
  auto model = make_small_model(pool_);
  spoil_after(*model, 5);
  run_well(*model);
  EXPECT_THAT(checkpoints(), ElementsAre(4, 10, 12));
  const auto best = best_checkpoint(*disk_, options_.checkpoint_folder);
  ASSERT_TRUE(best) << best.error().text();
  EXPECT_EQ(*best, options_.checkpoint_folder + "/step_00000004");
  // What was best before a process began is still known.
  options_.steps = 16;
  spoil_after(*model, 1);
  run_well(*model);
  EXPECT_THAT(checkpoints(), ElementsAre(4, 15, 16));
  EXPECT_EQ(*best_checkpoint(*disk_, options_.checkpoint_folder), *best);
}

TEST_F(EvaluatingTrainerTest, OneThatCouldNotBeWrittenIsNotTheBest) {
  disk_ = std::make_unique<NoRoomOnce>("step_00000006", std::move(disk_));
  auto model = make_small_model(pool_);
  spoil_after(*model, 8);
  run_well(*model);
  EXPECT_THAT(events("checkpoint_failed"), SizeIs(1));
  EXPECT_THAT(checkpoints(), ElementsAre(4, 10, 12));
  const auto best = best_checkpoint(*disk_, options_.checkpoint_folder);
  ASSERT_TRUE(best) << best.error().text();
  EXPECT_EQ(*best, options_.checkpoint_folder + "/step_00000004");
}

// The last checkpoint is of what could not be written under way: it is the best all the same.
TEST_F(EvaluatingTrainerTest, OneThatIsWrittenAtTheEndIsTheBest) {
  disk_ = std::make_unique<NoRoomOnce>("step_00000012", std::move(disk_));
  auto model = make_small_model(pool_);
  run_well(*model);
  EXPECT_THAT(events("checkpoint_failed"), SizeIs(1));
  const auto best = best_checkpoint(*disk_, options_.checkpoint_folder);
  ASSERT_TRUE(best) << best.error().text();
  EXPECT_EQ(*best, options_.checkpoint_folder + "/step_00000012");
}

TEST_F(EvaluatingTrainerTest, WithoutOneNoneIsTheBest) {
  options_.evaluate_steps = 0;
  EXPECT_EQ(best_checkpoint(*disk_, folder_ / "nowhere").error().code, ErrorCode::not_found);
  auto model = make_small_model(pool_);
  run_well(*model);
  EXPECT_THAT(checkpoints(), ElementsAre(10, 12));
  const auto best = best_checkpoint(*disk_, options_.checkpoint_folder);
  ASSERT_FALSE(best);
  EXPECT_EQ(best.error().code, ErrorCode::not_found);
  EXPECT_THAT(best.error().text(), HasSubstr("train.evaluate_every"));
}

TEST_F(EvaluatingTrainerTest, ATextThatIsGoneDoesNotEndTheTraining) {
  std::filesystem::remove(folder_ / "other");
  auto model = make_small_model(pool_);
  EXPECT_TRUE(run_well(*model).finished);
  EXPECT_THAT(events("evaluation_failed"), SizeIs(6));
  EXPECT_THAT(events("evaluation_failed").front(), HasSubstr("other"));
  EXPECT_THAT(checkpoints(), ElementsAre(10, 12));
}

// The state that a run ends with takes the place of what was trained in the last inner step.
TEST_F(EvaluatingTrainerTest, WhatTheRunEndsWithIsLookedAtToo) {
  federate();
  options_.evaluate_steps = 3;
  gateway_.on_contribute = [this](const Contribution& contribution) {
    auto agreed = contribution.parameters;
    if (contribution.step == 4)
      for (auto& x : agreed) x *= -30;  // worse than all that was trained
    auto state = state_of(contribution.step, agreed, OuterState::From::contribution);
    state.final_step = contribution.step == 4;
    gateway_.states.push_back(std::move(state));
  };
  auto model = make_small_model(pool_);
  run_well(*model);
  const auto lines = metrics("held_out");
  ASSERT_THAT(lines, SizeIs(2 * 5));
  EXPECT_EQ(lines[8]["inner_step"], 12);
  EXPECT_EQ(lines[8]["outer_step"], 4);
  const auto loss =
      held_out_loss(*model, *tokenizer_, *disk_, options_.held_out[0].path, options_.evaluation);
  ASSERT_TRUE(loss);
  EXPECT_EQ(lines[8]["bits_per_byte"].get<double>(), loss->bits_per_byte);
  EXPECT_GT(loss->bits(), lines[6]["bits_per_byte"].get<double>());
  // The best is one that is there, with the loss that was said of it.
  auto progress = load_checkpoint(*disk_, options_.checkpoint_folder + "/step_00000012", *model);
  ASSERT_TRUE(progress);
  const auto best =
      load_checkpoint(*disk_, *best_checkpoint(*disk_, options_.checkpoint_folder), *model);
  ASSERT_TRUE(best);
  double mean = 0;
  for (const auto& text : options_.held_out)
    mean += held_out_loss(*model, *tokenizer_, *disk_, text.path, options_.evaluation)->bits() / 2;
  EXPECT_EQ(progress->best_bits, mean);
}

}  // namespace
}  // namespace isthmus::runtime

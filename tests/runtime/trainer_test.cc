#include "runtime/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/checkpoint.h"
#include "tests/runtime/trainer_fixture.h"

namespace isthmus::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

// ---- alone

TEST_F(TrainerTest, LearnsAndKeepsBooks) {
  options_.steps = 60;
  options_.micro_batches = 2;
  auto model = make_small_model(pool_);
  const auto outcome = run_well(*model);
  EXPECT_TRUE(outcome.finished);
  EXPECT_EQ(outcome.inner_step, 60);
  EXPECT_EQ(outcome.tokens, 60U * 2 * 2 * 24);
  const auto lines = metrics("inner_step");
  ASSERT_THAT(lines, SizeIs(60));
  EXPECT_NEAR(lines.front()["loss"].get<double>(), std::log(260), 0.3);
  EXPECT_LT(lines.back()["loss"].get<double>(), 3.5);
  EXPECT_EQ(lines.back()["loss"].get<double>(), outcome.loss);
  EXPECT_EQ(lines.back()["tokens"], outcome.tokens);
  EXPECT_EQ(lines[4]["learning_rate"].get<double>(), options_.schedule.rate(4));
  EXPECT_GT(lines[4]["gradient_norm"].get<double>(), 0);
  EXPECT_GT(lines.back()["tokens_per_second"].get<double>(), 0);
  EXPECT_THAT(*list_checkpoints(*disk_, options_.checkpoint_folder), ElementsAre(55, 60));
}

TEST_F(TrainerTest, StopsAtAStepAndGoesOnToTheSameBits) {
  auto straight = make_small_model(pool_);
  run_well(*straight);
  for (const int stop_at : {1, 4, 5, 11}) {
    options_.checkpoint_folder = folder_ / ("stopped_" + std::to_string(stop_at));
    auto first = make_small_model(pool_);
    stop_ = false;
    options_.metrics_path = "";
    auto until = options_;
    until.steps = stop_at;
    std::swap(until, options_);
    EXPECT_EQ(run_well(*first).inner_step, stop_at);
    std::swap(until, options_);
    auto second = make_small_model(pool_, 99);  // whatever it began with is replaced
    const auto outcome = run_well(*second);
    EXPECT_EQ(outcome.inner_step, 12);
    EXPECT_EQ(canonical(*second), canonical(*straight));
    EXPECT_EQ(contents_of(outcome.checkpoint + "/model.safetensors"),
              contents_of((folder_ / "checkpoints") + "/step_00000012/model.safetensors"));
  }
}

TEST_F(TrainerTest, AStopFinishesTheStepAndKeepsACheckpoint) {
  world_.on_gradients = [this, steps = 0]() mutable { stop_ = ++steps == 3; };
  auto model = make_small_model(pool_);
  const auto outcome = run(*model);
  ASSERT_TRUE(outcome);
  EXPECT_FALSE(outcome->finished);
  EXPECT_EQ(outcome->inner_step, 3);
  EXPECT_THAT(*list_checkpoints(*disk_, options_.checkpoint_folder), ElementsAre(3));
}

TEST_F(TrainerTest, MicroBatchesAreOneBatch) {
  auto together = make_model(pool_, small_config(), {.micro_batch = 4, .sequence = 24});
  run_well(*together);
  options_.checkpoint_folder = folder_ / "accumulated";
  options_.micro_batches = 2;
  auto accumulated = make_small_model(pool_);
  run_well(*accumulated);
  const auto a = canonical(*together), b = canonical(*accumulated);
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-4);
}

TEST_F(TrainerTest, AFinishedRunStaysFinished) {
  auto model = make_small_model(pool_);
  run_well(*model);
  const auto before = canonical(*model);
  const auto outcome = run_well(*model);
  EXPECT_TRUE(outcome.finished);
  EXPECT_TRUE(std::isnan(outcome.loss));
  EXPECT_EQ(canonical(*model), before);
}

TEST_F(TrainerTest, SaysWhenTheDataChanged) {
  auto model = make_small_model(pool_);
  options_.steps = 3;
  run_well(*model);
  EXPECT_THAT(events("data_changed"), SizeIs(0));
  write_contents(folder_ / "text", sample_text(2000, 2));
  options_.steps = 6;
  run_well(*model);
  EXPECT_THAT(events("data_changed"), SizeIs(1));
}

TEST_F(TrainerTest, RefusesAVocabularyWithoutAllBytes) {
  auto config = small_config();
  config.vocabulary = 200;
  auto model = make_model(pool_, config, small_shape());
  const auto outcome = run(*model);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(outcome.error().text(), HasSubstr("200 tokens"));
}

TEST_F(TrainerTest, RefusesWhatDoesNotFitIntoMemory) {
  auto model = make_small_model(pool_);
  // In a federation three more copies of the parameters here, and nine at the gateway.
  const auto parameters = static_cast<std::uint64_t>(parameter_count(model->config()));
  const auto alone = model->memory_bytes(), federated = alone + 12 * 4 * parameters;
  machine_memory_ = alone;
  const auto refused = run(*model);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::too_large);
  machine_memory_ = alone + 1;
  EXPECT_TRUE(run(*model));

  federate();
  gateway_.on_contribute = [this](const Contribution&) { stop_ = true; };
  machine_memory_ = federated;
  EXPECT_EQ(run(*model).error().code, ErrorCode::too_large);
  machine_memory_ = federated + 1;
  EXPECT_TRUE(run(*model));
}

TEST_F(TrainerTest, GradientsThatAreNotFiniteEndIt) {
  auto model = make_small_model(pool_);
  for (auto& x : model->parameters()) x = 1e30F;
  model->parameters_changed();
  options_.steps = 50;
  const auto outcome = run(*model);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::non_finite);
  EXPECT_THAT(events("step_skipped"), SizeIs(10));
}

// ---- in a federation

TEST_F(TrainerTest, ContributesEveryInnerStepsAndMergesTheState) {
  federate();
  auto model = make_small_model(pool_);
  const auto initial = canonical(*model);
  std::vector<float> agreed;
  gateway_.on_contribute = [&](const Contribution& contribution) {
    agreed = contribution.parameters;
    for (auto& x : agreed) x *= 0.5F;
    auto state = state_of(contribution.step, agreed, OuterState::From::contribution);
    state.final_step = contribution.step == 4;
    gateway_.states.push_back(std::move(state));
  };
  const auto outcome = run_well(*model);
  EXPECT_TRUE(outcome.finished);
  EXPECT_EQ(outcome.inner_step, 12);
  EXPECT_EQ(outcome.outer_step, 4U);
  EXPECT_EQ(gateway_.initial_parameters, initial);
  EXPECT_TRUE(std::is_sorted(gateway_.tensor_names.begin(), gateway_.tensor_names.end()));
  ASSERT_THAT(gateway_.contributions, SizeIs(4));
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(gateway_.contributions[i].step, i + 1);
    EXPECT_EQ(gateway_.contributions[i].tokens, 3U * 2 * 24);
  }
  EXPECT_EQ(canonical(*model), agreed);
  EXPECT_FALSE(gateway_.left);
  EXPECT_THAT(metrics("contribution"), SizeIs(4));
  EXPECT_THAT(metrics("merge"), SizeIs(4));
  const auto progress = load_checkpoint(*disk_, outcome.checkpoint, *model);
  ASSERT_TRUE(progress);
  EXPECT_EQ(progress->record, "record 4");
  EXPECT_EQ(canonical(*model), agreed);  // what is kept at the end is what was agreed
}

TEST_F(TrainerTest, TakesTheStateOfTheGatewayAtTheStart) {
  federate();
  auto model = make_small_model(pool_);
  const auto theirs = canonical(*make_small_model(pool_, 5));
  auto state = state_of(7, theirs, OuterState::From::nothing);
  state.final_step = true;
  gateway_has(std::move(state));
  const auto outcome = run_well(*model);
  EXPECT_EQ(outcome.outer_step, 7U);
  EXPECT_EQ(outcome.inner_step, 0);
  EXPECT_EQ(canonical(*model), theirs);
}

TEST_F(TrainerTest, TrainsOnWhileTheOuterStepRunsAndKeepsThatWork) {
  federate();
  options_.lead_steps = 2;
  auto model = make_small_model(pool_);
  int polls_at_contribution = 0;
  std::vector<float> zeros;
  gateway_.on_contribute = [&](const Contribution& c) {
    stop_ = c.step == 2;
    polls_at_contribution = gateway_.polls;
    zeros.assign(c.parameters.size(), 0.0F);
  };
  std::vector<float> before;
  gateway_.on_poll = [&] {
    if (gateway_.contributions.empty() || gateway_.polls != polls_at_contribution + 5) return;
    before = canonical(*model);
    gateway_.states.push_back(state_of(1, zeros, OuterState::From::contribution));
  };
  const auto outcome = run_well(*model);
  EXPECT_EQ(outcome.inner_step, 3 + 2 + 1);  // two ahead, then it waited; one more after the state
  EXPECT_TRUE(gateway_.left);
  // Zero was agreed on: what remains is what was trained since the contribution.
  const auto merged = metrics("merge");
  ASSERT_THAT(merged, SizeIs(1));
  EXPECT_EQ(merged[0]["inner_step"], 5);
  const auto after = canonical(*model);
  double lead = 0, left = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    const double d = before[i] - gateway_.contributions[0].parameters[i];
    lead += d * d;
    left += static_cast<double>(after[i]) * after[i];
  }
  EXPECT_GT(lead, 0);
  EXPECT_LT(left, 10 * lead);  // one more step on top
}

// A site that trained a whole contribution ahead hands that over: none is larger than the others.
TEST_F(TrainerTest, WhatIsAWholeContributionWhenTheStateComesIsHandedOverAtOnce) {
  federate();
  options_.lead_steps = 3;
  auto model = make_small_model(pool_);
  int polls_at_contribution = 0;
  gateway_.on_contribute = [&](const Contribution& c) {
    stop_ = c.step == 3;
    polls_at_contribution = gateway_.polls;
  };
  gateway_.on_poll = [&] {
    if (gateway_.contributions.empty() || gateway_.polls != polls_at_contribution + 9) return;
    const auto& last = gateway_.contributions.back();
    gateway_.states.push_back(state_of(last.step, last.parameters, OuterState::From::contribution));
  };
  run_well(*model);
  ASSERT_THAT(gateway_.contributions, SizeIs(3));
  for (const auto& contribution : gateway_.contributions)
    EXPECT_EQ(contribution.tokens, gateway_.contributions[0].tokens) << contribution.step;
}

TEST_F(TrainerTest, AStateThatCameWithoutItsContributionKeepsTheWork) {
  federate();
  auto model = make_small_model(pool_);
  std::vector<float> initial;
  gateway_.on_contribute = [&](const Contribution& c) {
    if (c.step == 1) {
      // Others decided steps 1 and 2 without this site.
      initial = gateway_.initial_parameters;
      auto shifted = initial;
      for (auto& x : shifted) x += 1.0F;
      gateway_.states.push_back(state_of(2, shifted, OuterState::From::base));
    } else {
      auto state = state_of(c.step, c.parameters, OuterState::From::contribution);
      state.final_step = true;
      gateway_.states.push_back(std::move(state));
    }
  };
  run_well(*model);
  ASSERT_THAT(gateway_.contributions, SizeIs(2));
  const auto& first = gateway_.contributions[0];
  const auto& second = gateway_.contributions[1];
  EXPECT_EQ(second.step, 3U);
  // What the first held is in the second, and so are its tokens.
  EXPECT_EQ(first.tokens, 3U * 2 * 24);
  EXPECT_EQ(second.tokens, first.tokens);
  for (std::size_t i = 0; i < initial.size(); ++i)
    EXPECT_NEAR(second.parameters[i], initial[i] + 1.0F + (first.parameters[i] - initial[i]),
                1e-6F);
}

TEST_F(TrainerTest, AStopBeforeTheFirstStateLeavesNothingBehind) {
  federate();
  gateway_.on_attach = nullptr;
  gateway_.on_poll = [&] { stop_ = gateway_.polls == 3; };
  auto model = make_small_model(pool_);
  const auto outcome = run_well(*model);
  EXPECT_FALSE(outcome.finished);
  EXPECT_THAT(*list_checkpoints(*disk_, options_.checkpoint_folder), SizeIs(0));
}

}  // namespace
}  // namespace isthmus::runtime

#include "runtime/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>

#include "runtime/checkpoint.h"
#include "runtime/checkpoint_folder.h"
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

TEST_F(TrainerTest, HiddenTokensAreThoseOfTheSamplesHoweverTheyAreDealt) {
  masking_.emplace(MaskingOptions{.token = 259, .vocabulary = 260, .special = {256, 257, 258}});
  options_.steps = 3;
  auto together = make_model(pool_, small_config(), {.micro_batch = 4, .sequence = 24});
  const auto one = run_well(*together);
  options_.checkpoint_folder = folder_ / "accumulated";
  options_.micro_batches = 4;
  auto accumulated = make_model(pool_, small_config(), {.micro_batch = 1, .sequence = 24});
  const auto four = run_well(*accumulated);
  EXPECT_EQ(one.tokens, four.tokens);
  EXPECT_GT(one.tokens, 20U);
  EXPECT_LT(one.tokens, 80U);  // of 288
  EXPECT_NEAR(one.loss, four.loss, 1e-5);
  const auto a = canonical(*together), b = canonical(*accumulated);
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-4);
  for (const auto& line : metrics("resumed")) EXPECT_EQ(line["objective"], "masked_tokens");
}

TEST_F(TrainerTest, HiddenTokensAreTheSameAfterAResume) {
  masking_.emplace(MaskingOptions{.token = 259, .vocabulary = 260});
  options_.micro_batches = 2;
  auto straight = make_small_model(pool_);
  const auto whole = run_well(*straight);
  options_.checkpoint_folder = folder_ / "resumed";
  world_.on_gradients = [this, sums = 0]() mutable { stop_ = ++sums == 7; };
  auto first = make_small_model(pool_);
  EXPECT_FALSE(run_well(*first).finished);
  world_.on_gradients = nullptr;
  stop_ = false;
  auto second = make_small_model(pool_, 99);
  const auto outcome = run_well(*second);
  EXPECT_EQ(outcome.tokens, whole.tokens);
  EXPECT_EQ(canonical(*second), canonical(*straight));
  // With another seed others are hidden.
  options_.checkpoint_folder = folder_ / "other";
  ++options_.seed;
  auto third = make_small_model(pool_);
  EXPECT_NE(run_well(*third).tokens, whole.tokens);
}

TEST_F(TrainerTest, AStepInWhichNothingIsHiddenChangesNothing) {
  masking_.emplace(MaskingOptions{.share = 1e-9, .token = 259, .vocabulary = 260});
  options_.steps = 2;
  auto model = make_small_model(pool_);
  const auto before = canonical(*model);
  const auto outcome = run_well(*model);
  EXPECT_EQ(outcome.inner_step, 2);
  EXPECT_EQ(outcome.tokens, 0U);
  EXPECT_EQ(canonical(*model), before);
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
  EXPECT_EQ(outcome.error().text(),
            "10 inner steps in a row were skipped, the last as a gradient is NaN or infinite; go "
            "back to an older checkpoint with a lower learning rate");
  EXPECT_THAT(events("step_skipped"), SizeIs(10));
}

TEST_F(TrainerTest, SpikesAreSkippedOnlyOnRequest) {
  options_.steps = 50;
  const auto spike = [this](Model& model) {
    world_.on_gradients = [&model, step = 0]() mutable {
      if (++step != 30) return;
      for (auto& x : model.gradients()) x *= 1000;
    };
  };
  auto taken = make_small_model(pool_);
  spike(*taken);
  run_well(*taken);
  EXPECT_THAT(events("step_skipped"), SizeIs(0));
  EXPECT_EQ(taken->updates(), 50);

  options_.checkpoint_folder = folder_ / "guarded";
  options_.spike_multiple = 20;
  auto guarded = make_small_model(pool_);
  spike(*guarded);
  run_well(*guarded);
  EXPECT_THAT(events("step_skipped"), SizeIs(1));
  EXPECT_THAT(events("step_skipped").front(), HasSubstr("20 times the usual one"));
  EXPECT_EQ(guarded->updates(), 49);
  EXPECT_EQ(metrics("inner_step").back()["skipped_steps"], 1);
}

// With so low a multiple nearly every other step is a spike: what the guard knows is part of what a
// run goes on from.
TEST_F(TrainerTest, WhatIsUsualIsKeptInCheckpoints) {
  options_.steps = 60;
  options_.spike_multiple = 1.02;
  options_.skipped_steps_max = 1000;
  auto straight = make_small_model(pool_);
  run_well(*straight);
  EXPECT_GT(straight->updates(), 20);
  EXPECT_LT(straight->updates(), 55);
  for (const int stop_at : {10, 33}) {
    options_.checkpoint_folder = folder_ / ("stopped_" + std::to_string(stop_at));
    options_.steps = stop_at;
    auto first = make_small_model(pool_);
    run_well(*first);
    options_.steps = 60;
    auto second = make_small_model(pool_, 99);
    run_well(*second);
    EXPECT_EQ(second->updates(), straight->updates());
    EXPECT_EQ(canonical(*second), canonical(*straight));
    EXPECT_EQ(metrics("inner_step").back()["skipped_steps"], 60 - straight->updates());
  }
}

TEST_F(TrainerTest, HowManySkippedStepsEndItIsSaid) {
  options_.steps = 50;
  options_.spike_multiple = 1e-3;  // all are, as soon as it is known what is usual
  options_.skipped_steps_max = 3;
  auto model = make_small_model(pool_);
  const auto outcome = run(*model);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::non_finite);
  EXPECT_THAT(outcome.error().text(), HasSubstr("3 inner steps in a row were skipped"));
  EXPECT_EQ(model->updates(), 16);
}

TEST_F(TrainerTest, ARunThatIsMadeLongerGoesOnAsIfItHadAlwaysBeen) {
  options_.schedule = {.shape = RateShape::wsd, .peak = 5e-3, .warmup_steps = 5, .steps = 40};
  options_.steps = 40;
  auto straight = make_small_model(pool_);
  run_well(*straight);
  options_.checkpoint_folder = folder_ / "longer";
  options_.steps = 12;
  options_.schedule.steps = 16;  // it decays from 12.8 on
  auto model = make_small_model(pool_);
  run_well(*model);
  options_.steps = options_.schedule.steps = 40;
  run_well(*model);
  EXPECT_EQ(canonical(*model), canonical(*straight));
}

TEST_F(TrainerTest, SomeTensorsHaveRatesOfTheirOwn) {
  options_.rates = {{"*norm*", 1e-30}};
  options_.adamw.weight_decay = 0;
  auto model = make_small_model(pool_);
  const auto before = canonical(*model);
  run_well(*model);
  std::size_t at = 0;
  const auto after = canonical(*model);
  for (const auto& tensor : model->tensors()) {
    const bool same =
        std::equal(before.begin() + static_cast<std::ptrdiff_t>(at),
                   before.begin() + static_cast<std::ptrdiff_t>(at + tensor.elements()),
                   after.begin() + static_cast<std::ptrdiff_t>(at));
    EXPECT_EQ(same, tensor.name.find("norm") != std::string::npos) << tensor.name;
    at += tensor.elements();
  }
}

TEST_F(TrainerTest, CheckpointsAreAlsoWrittenByTheClock) {
  options_.checkpoint_steps = 1000;
  options_.checkpoint_keep = 100;
  auto model = make_small_model(pool_);
  run_well(*model);
  EXPECT_THAT(*list_checkpoints(*disk_, options_.checkpoint_folder), ElementsAre(12));
  options_.checkpoint_folder = folder_ / "by_clock";
  options_.checkpoint_after = 1;  // a nanosecond, which every step takes
  auto other = make_small_model(pool_);
  run_well(*other);
  EXPECT_THAT(*list_checkpoints(*disk_, options_.checkpoint_folder), SizeIs(12));
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

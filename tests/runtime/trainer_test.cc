#include "runtime/trainer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/checkpoint.h"
#include "tests/runtime/scripted_sync.h"
#include "tests/runtime/small_model.h"
#include "tests/runtime/temporary_folder.h"

namespace isthmus::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

// Alone, and tells when the gradients of an inner step are summed.
class ObservedWorld final : public intra::Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  int local_world_size() const override { return 1; }
  Result<void> all_reduce(std::span<float>) override {
    if (on_gradients) on_gradients();
    return {};
  }
  Result<void> all_reduce(std::span<double>) override { return {}; }
  Result<void> all_reduce(std::span<std::uint64_t>) override { return {}; }
  Result<void> broadcast(std::span<std::byte>, int) override { return {}; }
  Result<void> barrier() override { return {}; }
  Result<void> close() override { return {}; }

  std::function<void()> on_gradients;
};

class TrainerTest : public testing::Test {
 protected:
  TrainerTest() {
    write_contents(folder_ / "text", sample_text(3000, 1));
    log_.add(make_callback_sink([this](const Event& event) { events_.push_back(to_json(event)); }));
    options_.checkpoint_folder = folder_ / "checkpoints";
    options_.metrics_path = folder_ / "metrics.jsonl";
    options_.steps = 12;
    options_.checkpoint_steps = 5;
    options_.schedule = {.peak = 5e-3, .warmup_steps = 5, .steps = 60};
  }

  Result<TrainOutcome> run(Model& model) {
    auto data =
        TextDataset::open(*disk_, {{folder_ / "text"}}, model.shape().sequence, options_.seed);
    EXPECT_TRUE(data);
    return train({.model = model,
                  .data = *data,
                  .world = world_,
                  .disk = *disk_,
                  .clock = *clock_,
                  .log = log_,
                  .outer = options_.federated ? &gateway_ : nullptr,
                  .stop = &stop_,
                  .machine_memory = machine_memory_},
                 options_);
  }
  TrainOutcome run_well(Model& model) {
    auto outcome = run(model);
    EXPECT_TRUE(outcome) << outcome.error().text();
    return *outcome;
  }
  static std::vector<float> canonical(Model& model) {
    std::vector<float> values;
    for (std::size_t i = 0; i < model.tensors().size(); ++i)
      values.insert(values.end(), model.parameters(i).begin(), model.parameters(i).end());
    return values;
  }
  std::vector<nlohmann::json> metrics(std::string_view kind) {
    std::vector<nlohmann::json> lines;
    std::istringstream in(contents_of(folder_ / "metrics.jsonl"));
    for (std::string line; std::getline(in, line);)
      if (auto json = nlohmann::json::parse(line); json["kind"] == kind) lines.push_back(json);
    return lines;
  }
  std::vector<std::string> events(std::string_view id) {
    std::vector<std::string> found;
    for (const auto& event : events_)
      if (event.find("\"" + std::string(id) + "\"") != std::string::npos) found.push_back(event);
    return found;
  }
  static double rate_of(const nlohmann::json& line) { return line["learning_rate"].get<double>(); }
  void federate() {
    options_.federated = true;
    options_.inner_steps = 3;
    gateway_.on_attach = [this] {
      gateway_.states.push_back(
          state_of(0, gateway_.initial_parameters, OuterState::From::nothing));
    };
  }
  // A rank finds this when it attaches.
  void gateway_has(OuterState state) {
    gateway_.on_attach = [this, state = std::move(state)] { gateway_.states.push_back(state); };
  }
  void stop_at_contribution() {
    gateway_.on_contribute = [this](const Contribution&) { stop_ = true; };
  }
  TrainOutcome run_until_poll(Model& model, int last) {
    gateway_.on_poll = [this, last, polls = 0]() mutable { stop_ = ++polls == last; };
    const auto outcome = run_well(model);
    gateway_.on_poll = nullptr;
    stop_ = false;
    return outcome;
  }

  TemporaryFolder folder_;
  std::unique_ptr<Disk> disk_ = make_system_disk();
  std::unique_ptr<Clock> clock_ = make_system_clock();
  EventLog log_{*clock_, "alpha"};
  std::vector<std::string> events_;
  ObservedWorld world_;
  ThreadPool pool_{{-1}};
  TrainOptions options_;
  std::uint64_t machine_memory_ = machine_memory_bytes();
  ScriptedSync gateway_;
  std::atomic<bool> stop_{false};
};

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
  // In a federation three more copies of the parameters here, and seven at the gateway.
  const auto parameters = static_cast<std::uint64_t>(parameter_count(model->config()));
  const auto alone = model->memory_bytes(), federated = alone + 10 * 4 * parameters;
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
  EXPECT_EQ(second.tokens, 4U * 2 * 24);  // one more step, then it was due at once
  double change = 0, expected = 0;
  for (std::size_t i = 0; i < initial.size(); ++i) {
    change += std::abs(second.parameters[i] - (initial[i] + 1.0F));
    expected += std::abs(first.parameters[i] - initial[i]);
  }
  EXPECT_NEAR(change / expected, 4.0 / 3.0, 0.6);
}

TEST_F(TrainerTest, ARestartOnTheSameStateGoesOnWithItsOwnParameters) {
  federate();
  auto straight = make_small_model(pool_);
  stop_ = false;
  stop_at_contribution();
  run_well(*straight);
  const auto expected = gateway_.contributions.back();

  options_.checkpoint_folder = folder_ / "restarted";
  stop_ = false;
  gateway_.contributions.clear();
  auto first = make_small_model(pool_);
  EXPECT_EQ(run_until_poll(*first, 3).inner_step, 2);
  EXPECT_TRUE(gateway_.left);
  gateway_has(state_of(0, canonical(*make_small_model(pool_)), OuterState::From::nothing));
  auto second = make_small_model(pool_, 99);
  run_well(*second);
  ASSERT_THAT(gateway_.contributions, SizeIs(1));
  EXPECT_EQ(gateway_.contributions[0].parameters, expected.parameters);
  EXPECT_EQ(gateway_.contributions[0].tokens, expected.tokens);
  EXPECT_THAT(events("tokens_lost"), SizeIs(0));
}

TEST_F(TrainerTest, ARestartAfterACrashReportsWhatIsLost) {
  federate();
  options_.inner_steps = 8;
  auto first = make_small_model(pool_);
  EXPECT_EQ(run_until_poll(*first, 8).inner_step, 7);
  // As if it had been killed then: what was kept at the stop is gone, step 5 is there.
  std::filesystem::remove_all(options_.checkpoint_folder + "/step_00000007");
  gateway_has(state_of(0, canonical(*make_small_model(pool_)), OuterState::From::nothing));
  stop_at_contribution();
  auto second = make_small_model(pool_);
  run_well(*second);
  ASSERT_THAT(events("tokens_lost"), SizeIs(1));
  EXPECT_THAT(events("tokens_lost")[0], HasSubstr("\"tokens\":96"));  // two steps of 2 x 24
  ASSERT_THAT(gateway_.contributions, SizeIs(1));
  EXPECT_EQ(gateway_.contributions[0].tokens, 8U * 48);
}

TEST_F(TrainerTest, AContributionThatTheGatewayNeverHadIsMadeAgain) {
  federate();
  auto first = make_small_model(pool_);
  stop_at_contribution();
  run_well(*first);
  stop_ = false;
  // The gateway died before anything was on its disk: to it nothing is open.
  gateway_has(state_of(0, canonical(*make_small_model(pool_)), OuterState::From::nothing));
  auto second = make_small_model(pool_, 99);
  EXPECT_EQ(run_well(*second).inner_step, 3);
  ASSERT_THAT(gateway_.contributions, SizeIs(2));
  EXPECT_EQ(gateway_.contributions[1].step, 1U);
  EXPECT_EQ(gateway_.contributions[1].parameters, gateway_.contributions[0].parameters);
  EXPECT_EQ(gateway_.contributions[1].tokens, 3U * 48);
  EXPECT_THAT(events("tokens_lost"), SizeIs(0));
  EXPECT_EQ(metrics("resumed").back()["tokens_contributed"], 3U * 48);
  EXPECT_EQ(metrics("contribution").back()["tokens_contributed"], 3U * 48);
}

TEST_F(TrainerTest, WhatWasTrainedPastAContributionThatTheGatewayNeverHadIsInTheNext) {
  federate();
  options_.lead_steps = 2;
  auto first = make_small_model(pool_);
  EXPECT_EQ(run_until_poll(*first, 6).inner_step, 3 + 2);
  gateway_has(state_of(0, canonical(*make_small_model(pool_)), OuterState::From::nothing));
  stop_at_contribution();
  auto second = make_small_model(pool_, 99);
  run_well(*second);
  ASSERT_THAT(gateway_.contributions, SizeIs(2));
  EXPECT_EQ(gateway_.contributions[1].parameters, canonical(*first));
  EXPECT_EQ(gateway_.contributions[1].tokens, 5U * 48);
  EXPECT_THAT(events("tokens_lost"), SizeIs(0));
}

TEST_F(TrainerTest, AContributionThatNeverWasIsReportedLostWhenTheOthersWentOn) {
  for (const std::uint64_t contributed : {0, 1}) {
    SCOPED_TRACE(contributed);
    events_.clear();
    gateway_ = ScriptedSync();
    federate();
    options_.checkpoint_folder = folder_ / fmt::format("checkpoints_{}", contributed);
    options_.metrics_path = folder_ / fmt::format("metrics_{}", contributed);
    auto first = make_small_model(pool_);
    stop_at_contribution();
    run_well(*first);
    stop_ = false;
    auto later = state_of(4, canonical(*make_small_model(pool_, 5)), OuterState::From::nothing);
    later.contributed = contributed;
    gateway_has(std::move(later));
    run_until_poll(*first, 3);
    ASSERT_THAT(events("tokens_lost"), SizeIs(contributed == 0 ? 1 : 0));
    if (contributed == 0) {
      EXPECT_THAT(events("tokens_lost")[0], HasSubstr("\"tokens\":144"));
    }
  }
}

TEST_F(TrainerTest, WhatWasTrainedPastAContributionThatTheGatewayHasIsReportedLost) {
  federate();
  options_.lead_steps = 2;
  auto first = make_small_model(pool_);
  EXPECT_EQ(run_until_poll(*first, 6).inner_step, 3 + 2);
  auto open = state_of(0, canonical(*make_small_model(pool_)), OuterState::From::nothing);
  open.contribution_open = true;
  gateway_has(std::move(open));
  auto second = make_small_model(pool_);
  run_until_poll(*second, 3);
  EXPECT_THAT(gateway_.contributions, SizeIs(1));
  ASSERT_THAT(events("tokens_lost"), SizeIs(1));
  EXPECT_THAT(events("tokens_lost")[0], HasSubstr("\"tokens\":96"));
}

TEST_F(TrainerTest, AContributionThatNeitherGatewayNorCheckpointHasIsReportedLost) {
  federate();
  options_.inner_steps = 8;
  auto first = make_small_model(pool_);
  stop_at_contribution();
  run_well(*first);
  stop_ = false;
  // As if both had been killed then: step 5 is there.
  std::filesystem::remove_all(options_.checkpoint_folder + "/step_00000008");
  gateway_has(state_of(0, canonical(*make_small_model(pool_)), OuterState::From::nothing));
  auto second = make_small_model(pool_);
  run_until_poll(*second, 3);
  ASSERT_THAT(events("tokens_lost"), SizeIs(1));
  EXPECT_THAT(events("tokens_lost")[0], HasSubstr("\"tokens\":144"));  // three steps of 2 x 24
}

TEST_F(TrainerTest, ARestartOnANewerStateDropsItsParameters) {
  federate();
  auto first = make_small_model(pool_);
  run_until_poll(*first, 3);
  gateway_has(state_of(4, canonical(*make_small_model(pool_, 5)), OuterState::From::nothing));
  stop_at_contribution();
  auto second = make_small_model(pool_);
  const auto outcome = run_well(*second);
  EXPECT_EQ(outcome.inner_step, 2 + 3);  // the optimizer's and data's position go on
  ASSERT_THAT(gateway_.contributions, SizeIs(1));
  EXPECT_EQ(gateway_.contributions[0].step, 5U);
  EXPECT_EQ(gateway_.contributions[0].tokens, 3U * 48);
  ASSERT_THAT(events("tokens_lost"), SizeIs(1));
  EXPECT_THAT(events("tokens_lost")[0], HasSubstr("\"tokens\":96"));
}

TEST_F(TrainerTest, ARestartAfterItsContributionWaitsForTheState) {
  federate();
  auto model = make_small_model(pool_);
  const auto state = canonical(*model);
  auto open = state_of(3, state, OuterState::From::nothing);
  open.contribution_open = true;
  gateway_has(std::move(open));
  gateway_.on_poll = [&, polls = 0]() mutable {
    if (++polls != 5) return;
    auto next = state_of(4, state, OuterState::From::base);
    next.final_step = true;
    gateway_.states.push_back(std::move(next));
  };
  const auto outcome = run_well(*model);
  EXPECT_EQ(outcome.outer_step, 4U);
  EXPECT_EQ(outcome.inner_step, 0);
  EXPECT_THAT(gateway_.contributions, SizeIs(0));
  EXPECT_TRUE(gateway_.statuses.back().waiting);
}

TEST_F(TrainerTest, ARestartWithItsWorkContributedAddsItOnlyOnce) {
  federate();
  auto first = make_small_model(pool_);
  stop_at_contribution();
  run_well(*first);  // stopped between contribution and state: x_c is in its checkpoint
  stop_ = false;
  const auto initial = canonical(*make_small_model(pool_));
  gateway_.on_attach = [&] {
    auto open = state_of(0, initial, OuterState::From::nothing);
    open.contribution_open = true;
    gateway_.states.push_back(std::move(open));
    // This process has contributed nothing, so to its client the state replaces the base.
    gateway_.states.push_back(
        state_of(1, gateway_.contributions[0].parameters, OuterState::From::base));
  };
  auto second = make_small_model(pool_);
  EXPECT_EQ(run_until_poll(*second, 2).inner_step, 3 + 1);
  // One step on top of what was agreed, and not six.
  double one = 0, three = 0;
  const auto now = canonical(*second);
  for (std::size_t i = 0; i < now.size(); ++i) {
    one += std::abs(now[i] - gateway_.contributions[0].parameters[i]);
    three += std::abs(gateway_.contributions[0].parameters[i] - initial[i]);
  }
  EXPECT_GT(one, 0);
  EXPECT_LT(one, 0.75 * three);
}

// ---- the learning rate follows the federation

TEST_F(TrainerTest, TheRateOfAnUndisturbedSiteIsThatOfItsSteps) {
  federate();
  options_.lead_steps = 2;
  auto model = make_small_model(pool_);
  // Each state comes two inner steps after its contribution.
  std::optional<OuterState> agreed;
  gateway_.on_contribute = [&](const Contribution& c) {
    agreed = state_of(c.step, c.parameters, OuterState::From::contribution);
    agreed->final_step = c.step == 4;
  };
  gateway_.on_poll = [&, steps = std::size_t{0}]() mutable {
    steps = metrics("inner_step").size();
    if (agreed && steps == 3 * agreed->step + 2) {
      gateway_.states.push_back(*std::exchange(agreed, std::nullopt));
    }
  };
  run_well(*model);
  const auto lines = metrics("inner_step");
  ASSERT_THAT(lines, SizeIs(14));
  for (std::size_t i = 0; i < lines.size(); ++i)
    EXPECT_EQ(rate_of(lines[i]), options_.schedule.rate(static_cast<std::int64_t>(i))) << i;
}

TEST_F(TrainerTest, ARestartHasTheRateOfTheFederation) {
  federate();
  options_.schedule.warmup_steps = 0;
  auto first = make_small_model(pool_);
  run_until_poll(*first, 3);  // two inner steps on state 0
  gateway_.on_attach = [&] {
    gateway_.states.push_back(state_of(9, gateway_.initial_parameters, OuterState::From::nothing));
  };
  stop_at_contribution();
  auto second = make_small_model(pool_);
  EXPECT_EQ(run_well(*second).inner_step, 2 + 3);
  const auto lines = metrics("inner_step");
  ASSERT_THAT(lines, SizeIs(5));
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(rate_of(lines[static_cast<std::size_t>(2 + i)]), options_.schedule.rate(9 * 3 + i));
}

TEST_F(TrainerTest, ARestartOnTheSameStateGoesOnWithItsRate) {
  federate();
  auto first = make_small_model(pool_);
  run_until_poll(*first, 3);
  gateway_has(state_of(0, canonical(*make_small_model(pool_)), OuterState::From::nothing));
  stop_at_contribution();
  auto second = make_small_model(pool_);
  run_well(*second);
  const auto lines = metrics("inner_step");
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_EQ(rate_of(lines[2]), options_.schedule.rate(2));
}

TEST_F(TrainerTest, ASiteThatComesLateHasTheRateOfTheFederation) {
  federate();
  options_.schedule.warmup_steps = 0;
  auto model = make_small_model(pool_);
  gateway_.on_contribute = [&](const Contribution& c) {
    // Others decided steps 1 to 6 without this site.
    if (c.step == 1)
      gateway_.states.push_back(state_of(6, c.parameters, OuterState::From::base));
    else
      stop_ = true;
  };
  run_well(*model);
  const auto lines = metrics("inner_step");
  ASSERT_THAT(lines, SizeIs(4));
  EXPECT_EQ(rate_of(lines[2]), options_.schedule.rate(2));
  EXPECT_EQ(rate_of(lines[3]), options_.schedule.rate(6 * 3));
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

// A rank that begins again in a federation: whose parameters and learning rate it goes on with, and
// what it reports lost.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/checkpoint.h"
#include "runtime/checkpoint_folder.h"
#include "tests/base/passing_disk.h"
#include "tests/runtime/trainer_fixture.h"

namespace isthmus::runtime {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

// No room for files of this name; all else as it is.
class NoRoomFor final : public PassingDisk {
 public:
  NoRoomFor(std::string_view name, std::unique_ptr<Disk> disk)
      : PassingDisk(std::move(disk)), name_(name) {}

  Result<std::unique_ptr<File>> open(const std::string& path, Open how) override {
    if (how != Open::read && path.ends_with(name_))
      return Error{ErrorCode::disk_full, "no room for " + path};
    return PassingDisk::open(path, how);
  }

 private:
  const std::string name_;
};

class TrainerRestartTest : public TrainerTest {
 protected:
  // As if the checkpoint of the stop had been one from under way.
  void crashed() {
    const auto steps = list_checkpoints(*disk_, options_.checkpoint_folder);
    ASSERT_TRUE(steps);
    for (const auto step : *steps)
      ASSERT_TRUE(forget_trained_on(*disk_, options_.checkpoint_folder, step));
  }
  static OuterState contributed(OuterState state, std::uint64_t step) {
    state.contributed = step;
    return state;
  }
  // to + (x − from), each rounded once.
  static std::vector<float> merged(std::span<const float> x, std::span<const float> from,
                                   std::span<const float> to) {
    std::vector<float> out(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) out[i] = to[i] + (x[i] - from[i]);
    return out;
  }
  // Parameters and tokens of the next contribution, made at once.
  Contribution next_contribution() {
    gateway_.contributions.clear();
    options_.inner_steps = 1;
    stop_at_contribution();
    auto model = make_small_model(pool_, 99);
    run_well(*model);
    stop_ = false;
    gateway_.on_contribute = nullptr;
    EXPECT_THAT(gateway_.contributions, SizeIs(1));
    return gateway_.contributions.empty() ? Contribution() : gateway_.contributions.front();
  }

  std::vector<float> initial_ = canonical(*make_small_model(pool_));
  std::vector<float> other_ = canonical(*make_small_model(pool_, 5));
};

// ---- parameters and contributions

TEST_F(TrainerRestartTest, ARestartOnTheSameStateGoesOnWithItsOwnParameters) {
  federate();
  auto straight = make_small_model(pool_);
  stop_ = false;
  stop_at_contribution();
  run_well(*straight);
  const auto expected = gateway_.contributions.back();

  options_.checkpoint_folder = folder_ / "restarted";
  options_.metrics_path = folder_ / "restarted.jsonl";
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

TEST_F(TrainerRestartTest, ARestartAfterACrashReportsWhatIsLost) {
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

TEST_F(TrainerRestartTest, WhatIsLostIsReportedByTheFirstThatGetsAState) {
  federate();
  options_.inner_steps = 8;
  auto first = make_small_model(pool_);
  EXPECT_EQ(run_until_poll(*first, 8).inner_step, 7);
  std::filesystem::remove_all(options_.checkpoint_folder + "/step_00000007");
  gateway_.on_attach = nullptr;  // the gateway is away, and the next one ends while it waits for it
  auto second = make_small_model(pool_);
  EXPECT_EQ(run_until_poll(*second, 3).inner_step, 5);
  EXPECT_THAT(events("tokens_lost"), SizeIs(0));
  gateway_has(state_of(0, canonical(*make_small_model(pool_)), OuterState::From::nothing));
  auto third = make_small_model(pool_);
  EXPECT_EQ(run_until_poll(*third, 2).inner_step, 6);
  ASSERT_THAT(events("tokens_lost"), SizeIs(1));
  EXPECT_THAT(events("tokens_lost")[0], HasSubstr("\"tokens\":96"));  // two steps of 2 x 24
  run_until_poll(*make_small_model(pool_), 2);
  EXPECT_THAT(events("tokens_lost"), SizeIs(1)) << "it was said already";
}

TEST_F(TrainerRestartTest, AContributionThatTheGatewayNeverHadIsMadeAgain) {
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
  EXPECT_EQ(metrics("resumed").back()["tokens_contributed"], 0U) << "the gateway has none";
  EXPECT_EQ(metrics("contribution").back()["tokens_contributed"], 3U * 48);
}

TEST_F(TrainerRestartTest, WhatWasTrainedPastAContributionThatTheGatewayNeverHadIsInTheNext) {
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

TEST_F(TrainerRestartTest, AContributionThatNeverWasIsReportedLostWhenTheOthersWentOn) {
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
    crashed();
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

TEST_F(TrainerRestartTest, WhatWasTrainedPastAContributionThatTheGatewayHasIsReportedLost) {
  federate();
  options_.lead_steps = 2;
  auto first = make_small_model(pool_);
  EXPECT_EQ(run_until_poll(*first, 6).inner_step, 3 + 2);
  crashed();
  auto open = state_of(0, canonical(*make_small_model(pool_)), OuterState::From::nothing);
  open.contribution_open = true;
  gateway_has(std::move(open));
  auto second = make_small_model(pool_);
  run_until_poll(*second, 3);
  EXPECT_THAT(gateway_.contributions, SizeIs(1));
  ASSERT_THAT(events("tokens_lost"), SizeIs(1));
  EXPECT_THAT(events("tokens_lost")[0], HasSubstr("\"tokens\":96"));
}

TEST_F(TrainerRestartTest, AContributionThatNeitherGatewayNorCheckpointHasIsReportedLost) {
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

// The checkpoint follows a contribution that the gateway has; the one after it, it has lost.
TEST_F(TrainerRestartTest, ALaterContributionThatTheGatewayLostIsReportedLost) {
  for (const bool open : {false, true}) {
    SCOPED_TRACE(open);
    events_.clear();
    gateway_ = ScriptedSync();
    stop_ = false;
    federate();
    options_.checkpoint_folder = folder_ / fmt::format("checkpoints_{}", open);
    options_.metrics_path = folder_ / fmt::format("metrics_{}", open);
    options_.checkpoint_steps = 3;
    gateway_.on_contribute = [&](const Contribution& made) {
      if (made.step == 1)
        gateway_.states.push_back(state_of(1, made.parameters, OuterState::From::contribution));
      stop_ = made.step == 2;
    };
    auto first = make_small_model(pool_);
    EXPECT_EQ(run_well(*first).inner_step, 6);
    gateway_.on_contribute = nullptr;
    stop_ = false;
    std::filesystem::remove_all(options_.checkpoint_folder + "/step_00000006");
    auto state = state_of(1, canonical(*make_small_model(pool_, 5)), OuterState::From::nothing);
    state.contributed = 1;
    state.contribution_open = open;
    gateway_has(std::move(state));
    auto second = make_small_model(pool_);
    run_until_poll(*second, 3);
    ASSERT_THAT(events("tokens_lost"), SizeIs(open ? 0 : 1));
    if (!open) {
      EXPECT_THAT(events("tokens_lost")[0], HasSubstr("\"tokens\":144"));  // three steps of 2 x 24
    }
  }
}

TEST_F(TrainerRestartTest, ARestartAfterACrashOnANewerStateDropsItsParameters) {
  federate();
  auto first = make_small_model(pool_);
  run_until_poll(*first, 3);
  crashed();
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

TEST_F(TrainerRestartTest, ARestartAfterItsContributionWaitsForTheState) {
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

TEST_F(TrainerRestartTest, ARestartWithItsWorkContributedAddsItOnlyOnce) {
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

// ---- what was trained before a stop

TEST_F(TrainerRestartTest, WorkOnAnOlderStateIsMergedIntoTheNewer) {
  federate();
  auto first = make_small_model(pool_);
  run_until_poll(*first, 3);  // two inner steps on state 0
  gateway_has(state_of(4, other_, OuterState::From::nothing));
  const auto made = next_contribution();
  EXPECT_EQ(made.step, 5U);
  EXPECT_EQ(made.tokens, 2U * 48);
  EXPECT_EQ(made.parameters, merged(canonical(*first), initial_, other_));
  EXPECT_THAT(events("tokens_lost"), SizeIs(0));
}

TEST_F(TrainerRestartTest, WhatWasTrainedPastAKeptContributionIsMergedIntoTheNewerState) {
  federate();
  options_.lead_steps = 2;
  auto first = make_small_model(pool_);
  EXPECT_EQ(run_until_poll(*first, 6).inner_step, 3 + 2);
  const auto handed = gateway_.contributions.front().parameters;
  gateway_has(contributed(state_of(1, other_, OuterState::From::nothing), 1));
  const auto made = next_contribution();
  EXPECT_EQ(made.step, 2U);
  EXPECT_EQ(made.tokens, 2U * 48);
  EXPECT_EQ(made.parameters, merged(canonical(*first), handed, other_));
  EXPECT_EQ(metrics("contribution").back()["tokens_contributed"], 5U * 48);
  EXPECT_THAT(events("tokens_lost"), SizeIs(0));
}

TEST_F(TrainerRestartTest, AContributionThatNeverWasIsInTheNextWhenTheOthersWentOn) {
  federate();
  options_.lead_steps = 2;
  auto first = make_small_model(pool_);
  EXPECT_EQ(run_until_poll(*first, 6).inner_step, 3 + 2);
  gateway_has(state_of(7, other_, OuterState::From::nothing));
  const auto made = next_contribution();
  EXPECT_EQ(made.step, 8U);
  EXPECT_EQ(made.tokens, 5U * 48);
  EXPECT_EQ(made.parameters, merged(canonical(*first), initial_, other_));
  EXPECT_EQ(metrics("contribution").back()["tokens_contributed"], 5U * 48);
  EXPECT_THAT(events("tokens_lost"), SizeIs(0));
}

// Two stops while the contribution is open: what comes on top of it waits for its state.
TEST_F(TrainerRestartTest, WhatWasTrainedPastAnOpenContributionIsMergedOnce) {
  federate();
  options_.lead_steps = 2;
  auto first = make_small_model(pool_);
  EXPECT_EQ(run_until_poll(*first, 6).inner_step, 3 + 2);
  const auto handed = gateway_.contributions.front().parameters;
  auto open = state_of(0, initial_, OuterState::From::nothing);
  open.contribution_open = true;
  open.contributed = 1;
  gateway_has(open);
  auto second = make_small_model(pool_, 99);
  EXPECT_EQ(run_until_poll(*second, 3).inner_step, 3 + 2);  // it has its lead already
  EXPECT_EQ(canonical(*second), canonical(*first));
  gateway_.on_attach = [&] {
    gateway_.states.push_back(open);
    // This process has contributed nothing, so to its client the state replaces the base.
    gateway_.states.push_back(contributed(state_of(1, other_, OuterState::From::base), 1));
  };
  const auto made = next_contribution();
  EXPECT_EQ(made.step, 2U);
  EXPECT_EQ(made.tokens, 2U * 48);
  EXPECT_EQ(made.parameters, merged(canonical(*first), handed, other_));
  EXPECT_THAT(events("tokens_lost"), SizeIs(0));
}

TEST_F(TrainerRestartTest, WorkThatANewerContributionHoldsIsNotMergedAgain) {
  federate();
  auto first = make_small_model(pool_);
  run_until_poll(*first, 3);
  // A copy of this run_dir went on, or it is an old one.
  gateway_has(contributed(state_of(4, other_, OuterState::From::nothing), 3));
  options_.inner_steps = 3;
  gateway_.contributions.clear();
  stop_at_contribution();
  auto second = make_small_model(pool_, 99);
  run_well(*second);
  EXPECT_EQ(gateway_.contributions.at(0).tokens, 3U * 48);
}

TEST_F(TrainerRestartTest, WorkOnAnotherRunIsNotMerged) {
  federate();
  auto first = make_small_model(pool_);
  run_until_poll(*first, 3);
  auto other = state_of(4, other_, OuterState::From::nothing);
  other.run = "another run";
  gateway_has(std::move(other));
  gateway_.contributions.clear();
  stop_at_contribution();
  auto second = make_small_model(pool_, 99);
  run_well(*second);
  EXPECT_EQ(gateway_.contributions.at(0).tokens, 3U * 48);
}

TEST_F(TrainerRestartTest, ACrashAfterTheMergeDoesNotMergeAgain) {
  federate();
  auto first = make_small_model(pool_);
  run_until_poll(*first, 3);
  const auto stopped = options_.checkpoint_folder + "/step_00000002";
  const auto kept = folder_ / "kept";
  gateway_has(state_of(4, other_, OuterState::From::nothing));
  // When the first contribution is made, the stop's checkpoint is what a crash comes back to.
  gateway_.on_contribute = [&](const Contribution&) {
    std::filesystem::copy(stopped, kept, std::filesystem::copy_options::recursive);
    stop_ = true;
  };
  auto second = make_small_model(pool_, 99);
  run_well(*second);
  stop_ = false;
  std::filesystem::remove_all(options_.checkpoint_folder);
  std::filesystem::create_directories(options_.checkpoint_folder);
  std::filesystem::copy(kept, stopped, std::filesystem::copy_options::recursive);
  gateway_has(contributed(state_of(5, other_, OuterState::From::nothing), 5));
  const auto made = next_contribution();
  EXPECT_EQ(made.step, 6U);
  EXPECT_EQ(made.tokens, 1U * 48);  // of the inner step that it made itself
}

TEST_F(TrainerRestartTest, AStopOnADiskWithLittleRoomKeepsTheCheckpoint) {
  federate();
  disk_ = std::make_unique<NoRoomFor>("trained_on.safetensors", std::move(disk_));
  auto first = make_small_model(pool_);
  const auto stopped = run_until_poll(*first, 3);
  EXPECT_EQ(stopped.inner_step, 2);
  EXPECT_THAT(stopped.not_kept, HasSubstr("trained_on.safetensors"));
  EXPECT_THAT(events("merge_base_not_kept"), SizeIs(1));
  gateway_has(state_of(0, initial_, OuterState::From::nothing));
  EXPECT_EQ(next_contribution().tokens, 2U * 48);
}

TEST_F(TrainerRestartTest, HalfOfACheckpointTakesNoRoom) {
  NoRoomFor disk("optimizer.safetensors", std::move(disk_));
  auto model = make_small_model(pool_);
  const std::string folder = folder_ / "half";
  Progress progress;
  progress.inner_step = 3;
  const auto written = write_checkpoint(disk, folder, *model, progress, 1, {});
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, ErrorCode::disk_full);
  EXPECT_THAT(*disk.list(folder), SizeIs(0));
}

TEST_F(TrainerRestartTest, TheLastStateIsTakenAsItIs) {
  federate();
  auto first = make_small_model(pool_);
  run_until_poll(*first, 3);
  auto last = state_of(4, other_, OuterState::From::nothing);
  last.final_step = true;
  gateway_has(std::move(last));
  auto second = make_small_model(pool_, 99);
  EXPECT_TRUE(run_well(*second).finished);
  EXPECT_EQ(canonical(*second), other_);
}

// ---- the learning rate follows the federation

TEST_F(TrainerRestartTest, TheRateOfAnUndisturbedSiteIsThatOfItsSteps) {
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

TEST_F(TrainerRestartTest, ARestartHasTheRateOfTheFederation) {
  federate();
  options_.schedule.warmup_steps = 0;
  auto first = make_small_model(pool_);
  run_until_poll(*first, 3);  // two inner steps on state 0
  crashed();
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

TEST_F(TrainerRestartTest, ARestartOnTheSameStateGoesOnWithItsRate) {
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

TEST_F(TrainerRestartTest, ASiteThatComesLateHasTheRateOfTheFederation) {
  federate();
  options_.schedule.warmup_steps = 0;
  auto model = make_small_model(pool_);
  gateway_.on_contribute = [&](const Contribution& c) {
    // Others decided steps 1 to 6 without this site, whose work is in step 7.
    if (c.step == 1)
      gateway_.states.push_back(state_of(6, c.parameters, OuterState::From::base));
    else if (c.step == 7)
      gateway_.states.push_back(state_of(7, c.parameters, OuterState::From::contribution));
    else
      stop_ = true;
  };
  run_well(*model);
  const auto lines = metrics("inner_step");
  ASSERT_THAT(lines, SizeIs(6));
  EXPECT_EQ(rate_of(lines[2]), options_.schedule.rate(2));
  EXPECT_EQ(rate_of(lines[3]), options_.schedule.rate(7 * 3));
}

}  // namespace
}  // namespace isthmus::runtime

// The trainer at a federated site of two ranks: what rank 0 learns of its gateway, all ranks do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/copy_to.h"
#include "runtime/checkpoint.h"
#include "runtime/trainer.h"
#include "tests/base/temporary_folder.h"
#include "tests/runtime/scripted_sync.h"
#include "tests/runtime/small_model.h"

namespace isthmus::runtime {
namespace {

using testing::SizeIs;

constexpr int kRanks = 2;

// Ranks that are threads of this process. Sums are in the order of ranks.
class ThreadWorld {
 public:
  class Rank final : public intra::Communicator {
   public:
    Rank(ThreadWorld& world, int rank) : world_(world), rank_(rank) {}
    int rank() const override { return rank_; }
    int world_size() const override { return kRanks; }
    int local_world_size() const override { return kRanks; }
    Result<void> all_reduce(std::span<float> values) override { return sum(values); }
    Result<void> all_reduce(std::span<double> values) override { return sum(values); }
    Result<void> all_reduce(std::span<std::uint64_t> values) override { return sum(values); }
    Result<void> broadcast(std::span<std::byte> bytes, int root) override {
      const auto& from = show(bytes)[static_cast<std::size_t>(root)];
      EXPECT_EQ(from.size(), bytes.size());
      if (rank_ != root) copy_to(from, bytes.begin());
      return barrier();
    }
    Result<void> barrier() override {
      world_.barrier_.arrive_and_wait();
      return {};
    }
    Result<void> close() override { return {}; }

   private:
    const std::array<std::span<std::byte>, kRanks>& show(std::span<std::byte> bytes) {
      world_.shown_[static_cast<std::size_t>(rank_)] = bytes;
      world_.barrier_.arrive_and_wait();
      return world_.shown_;
    }
    template <class T>
    Result<void> sum(std::span<T> values) {
      std::vector<T> total(values.size(), T{});
      for (const auto& bytes : show(std::as_writable_bytes(values))) {
        EXPECT_EQ(bytes.size(), values.size_bytes());
        const auto* part = reinterpret_cast<const T*>(bytes.data());
        for (std::size_t i = 0; i < total.size(); ++i) total[i] += part[i];
      }
      world_.barrier_.arrive_and_wait();
      copy_to(total, values.begin());
      return {};
    }

    ThreadWorld& world_;
    int rank_;
  };

 private:
  std::barrier<> barrier_{kRanks};
  std::array<std::span<std::byte>, kRanks> shown_;
};

class TrainerRanksTest : public testing::Test {
 protected:
  TrainerRanksTest() {
    write_contents(folder_ / "text", sample_text(3000, 1));
    options_.federated = true;
    options_.inner_steps = 3;
    options_.checkpoint_folder = folder_ / "checkpoints";
    options_.checkpoint_steps = 4;
    options_.schedule = {.peak = 5e-3, .warmup_steps = 2, .steps = 60};
    gateway_.on_attach = [this] {
      gateway_.states.push_back(
          state_of(0, gateway_.initial_parameters, OuterState::From::nothing));
    };
  }

  // Trains with one model per rank, drawn from its seed; returns what each came to.
  std::vector<TrainOutcome> run(std::array<std::uint64_t, kRanks> seeds = {1, 1}) {
    ThreadWorld world;
    std::vector<TrainOutcome> outcomes(kRanks);
    {
      std::vector<std::jthread> threads;
      for (std::size_t rank = 0; rank < kRanks; ++rank)
        threads.emplace_back([&, rank] { outcomes[rank] = run_rank(world, rank, seeds[rank]); });
    }
    return outcomes;
  }
  // All ranks hold the same bits.
  void expect_equal_ranks() {
    for (const auto& parameters : parameters_) EXPECT_EQ(parameters, parameters_.front());
    EXPECT_EQ(parameters_.size(), std::size_t{kRanks});
  }

  TemporaryFolder folder_;
  TrainOptions options_;
  ScriptedSync gateway_;
  std::array<std::atomic<bool>, kRanks> stop_{};
  std::array<std::vector<float>, kRanks> parameters_;  // at the end

 private:
  TrainOutcome run_rank(ThreadWorld& world, std::size_t rank, std::uint64_t seed) {
    ThreadPool pool({-1});
    ThreadWorld::Rank communicator(world, static_cast<int>(rank));
    const auto disk = make_system_disk();
    const auto clock = make_system_clock();
    EventLog log(*clock, "alpha");
    const auto model = make_small_model(pool, seed);
    auto data =
        TextDataset::open(*disk, {{folder_ / "text"}}, model->shape().sequence, options_.seed);
    EXPECT_TRUE(data);
    const auto outcome = train({.model = *model,
                                .data = *data,
                                .world = communicator,
                                .disk = *disk,
                                .clock = *clock,
                                .log = log,
                                .outer = rank == 0 ? &gateway_ : nullptr,
                                .stop = &stop_[rank]},
                               options_);
    EXPECT_TRUE(outcome) << outcome.error().text();
    const auto flat = model->parameters();
    parameters_[rank].assign(flat.begin(), flat.end());
    return *outcome;
  }
};

TEST_F(TrainerRanksTest, BothMergeWhatWasAgreed) {
  options_.lead_steps = 2;
  std::optional<OuterState> agreed;
  int polls = 0;
  gateway_.on_contribute = [&](const Contribution& c) {
    auto parameters = c.parameters;
    for (auto& x : parameters) x *= 0.75F;
    agreed = state_of(c.step, std::move(parameters), OuterState::From::contribution);
    polls = 0;
  };
  gateway_.on_poll = [&] {
    if (!agreed || ++polls < 2) return;  // one inner step later: not all of x is in the state
    stop_[0] = agreed->step == 4;
    gateway_.states.push_back(*std::exchange(agreed, std::nullopt));
  };
  const auto outcomes = run();
  EXPECT_FALSE(outcomes[0].finished);
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.outer_step, 4U);
  ASSERT_THAT(gateway_.contributions, SizeIs(4));
  EXPECT_EQ(gateway_.contributions[0].tokens, 3U * kRanks * 2 * 24);  // of both ranks
  expect_equal_ranks();
}

TEST_F(TrainerRanksTest, BothKeepTheWorkThatCameTooLateAndEndWithTheFinalState) {
  gateway_.on_contribute = [&](const Contribution& c) {
    auto parameters = gateway_.initial_parameters;
    for (auto& x : parameters) x += 0.25F;
    auto state = state_of(c.step + 1, std::move(parameters), OuterState::From::base);
    state.final_step = c.step > 1;
    gateway_.states.push_back(std::move(state));
  };
  const auto outcomes = run();
  for (const auto& outcome : outcomes) {
    EXPECT_TRUE(outcome.finished);
    EXPECT_EQ(outcome.inner_step, 3);  // what was taken back is handed over as it is
  }
  ASSERT_THAT(gateway_.contributions, SizeIs(2));
  EXPECT_EQ(gateway_.contributions[1].tokens, 3U * kRanks * 2 * 24);
  expect_equal_ranks();
}

TEST_F(TrainerRanksTest, BothBeginWithTheStateOfTheGateway) {
  gateway_.on_attach = [this] {
    auto state = state_of(5, gateway_.initial_parameters, OuterState::From::nothing);
    state.final_step = true;
    gateway_.states.push_back(std::move(state));
  };
  const auto outcomes = run({1, 99});
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.outer_step, 5U);
  expect_equal_ranks();
}

TEST_F(TrainerRanksTest, AStopAtOneStopsBothAndTheyGoOnAsIfUndisturbed) {
  const auto stop_at_contribution = [this](const Contribution&) { stop_[1] = true; };
  gateway_.on_contribute = stop_at_contribution;
  run();
  const auto expected = gateway_.contributions.back();

  options_.checkpoint_folder = folder_ / "stopped";
  gateway_.contributions.clear();
  stop_[1] = false;
  // Rank 0 polls before the second inner step, which both finish.
  gateway_.on_poll = [&, polls = 0]() mutable { stop_[1] = ++polls == 3; };
  for (const auto& outcome : run()) {
    EXPECT_FALSE(outcome.finished);
    EXPECT_EQ(outcome.inner_step, 2);
  }
  EXPECT_TRUE(gateway_.left);
  expect_equal_ranks();

  gateway_.on_poll = nullptr;
  stop_[1] = false;
  gateway_.on_attach = [this, initial = gateway_.initial_parameters] {
    gateway_.states.push_back(state_of(0, initial, OuterState::From::nothing));
  };
  run({98, 99});  // what each begins with is replaced
  ASSERT_THAT(gateway_.contributions, SizeIs(1));
  EXPECT_EQ(gateway_.contributions[0].parameters, expected.parameters);
  EXPECT_EQ(gateway_.contributions[0].tokens, expected.tokens);
  expect_equal_ranks();
}

TEST_F(TrainerRanksTest, BothMergeTheirWorkBeforeAStopIntoANewerState) {
  gateway_.on_poll = [&, polls = 0]() mutable { stop_[1] = ++polls == 3; };
  run();
  const auto initial = gateway_.initial_parameters;
  gateway_.on_poll = nullptr;
  stop_[1] = false;
  auto newer = initial;
  for (auto& x : newer) x += 0.25F;
  gateway_.on_attach = [&] {
    gateway_.states.push_back(state_of(4, newer, OuterState::From::nothing));
  };
  gateway_.on_contribute = [&](const Contribution&) { stop_[1] = true; };
  options_.inner_steps = 2;  // what was trained before the stop is a whole contribution
  run({98, 99});
  ASSERT_THAT(gateway_.contributions, SizeIs(1));
  EXPECT_EQ(gateway_.contributions[0].tokens, 2U * kRanks * 2 * 24);
  EXPECT_NE(gateway_.contributions[0].parameters, newer);
  expect_equal_ranks();
}

}  // namespace
}  // namespace isthmus::runtime

// A trainer on a small model and a small text, alone or on a scripted gateway.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/byte_tokenizer.h"
#include "runtime/trainer.h"
#include "tests/base/temporary_folder.h"
#include "tests/runtime/scripted_sync.h"
#include "tests/runtime/small_model.h"

namespace isthmus::runtime {

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
    auto data = TextDataset::open(*disk_, {{folder_ / "text"}}, model.shape().sequence,
                                  options_.seed, {}, model.shape().documents);
    EXPECT_TRUE(data);
    return train({.model = model,
                  .data = *data,
                  .masking = masking_ ? &*masking_ : nullptr,
                  .world = world_,
                  .disk = *disk_,
                  .clock = *clock_,
                  .log = log_,
                  .outer = options_.federated ? &gateway_ : nullptr,
                  .tokenizer = tokenizer_.get(),
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
  std::unique_ptr<Tokenizer> tokenizer_ = make_byte_tokenizer();
  TrainOptions options_;
  std::optional<Masking> masking_;
  std::uint64_t machine_memory_ = machine_memory_bytes();
  ScriptedSync gateway_;
  std::atomic<bool> stop_{false};
};

}  // namespace isthmus::runtime

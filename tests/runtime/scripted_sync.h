// A gateway by script: next_state() gives the states of `states`, one each, which the test adds
// when something happens.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/outer_sync.h"

namespace isthmus::runtime {

struct Contribution {
  std::uint64_t step = 0;
  std::vector<float> parameters;
  std::uint64_t tokens = 0;
};

class ScriptedSync final : public OuterSync {
 public:
  void attach(std::span<const CanonicalTensor> tensors, std::span<const float> initial) override {
    tensor_names.clear();
    for (const auto& tensor : tensors) tensor_names.push_back(tensor.name);
    initial_parameters.assign(initial.begin(), initial.end());
    if (on_attach) on_attach();
  }
  Result<void> contribute(std::uint64_t step, std::span<const float> parameters,
                          std::uint64_t tokens) override {
    contributions.push_back({step, {parameters.begin(), parameters.end()}, tokens});
    if (on_contribute) on_contribute(contributions.back());
    return {};
  }
  Result<std::optional<OuterState>> next_state(Nanoseconds) override {
    ++polls;
    if (on_poll) on_poll();
    if (states.empty()) return std::optional<OuterState>();
    auto state = std::move(states.front());
    states.pop_front();
    return std::optional(std::move(state));
  }
  void progress(const TrainStatus& status) override { statuses.push_back(status); }
  void leave() override { left = true; }

  std::deque<OuterState> states;
  std::function<void()> on_attach, on_poll;
  std::function<void(const Contribution&)> on_contribute;
  std::vector<std::string> tensor_names;
  std::vector<float> initial_parameters;
  std::vector<Contribution> contributions;
  std::vector<TrainStatus> statuses;
  int polls = 0;
  bool left = false;
};

inline OuterState state_of(std::uint64_t step, std::vector<float> parameters,
                           OuterState::From from) {
  return {.step = step,
          .record = "record " + std::to_string(step),
          .run = "run",
          .from = from,
          .parameters = std::move(parameters)};
}

}  // namespace isthmus::runtime

// FakeGateway: what stands behind an attach socket in tests, an outer step without a network; and
// the small model whose ranks attach to it.
#pragma once

#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "inter/attach_client.h"
#include "inter/ranks.h"

namespace isthmus::inter {

inline std::vector<float> values(std::size_t count, float first) {
  std::vector<float> all(count);
  std::iota(all.begin(), all.end(), first);
  return all;
}

// As attach_client.py has it.
inline AttachRequest whole() {
  AttachRequest request;
  request.model_settings = "a model of one tensor";
  request.tensors = {{"weight", {4, 6}, 0}};
  request.boxes = {{0, {0, 0}, {4, 6}}};
  return request;
}
inline constexpr std::size_t kWhole = 24;

// An outer step without a network: what it decides is what the test says.
class FakeGateway final : public OuterSteps {
 public:
  struct Contribution {
    std::uint64_t step = 0;
    std::vector<float> parameters;
    std::uint64_t tokens = 0;
  };

  Result<void> attached(const ModelLayout& layout) override {
    if (attach_error) return *attach_error;
    if (state && state->size() != layout.elements())
      return Error{ErrorCode::mismatch, "another model than the run's"};
    ++attached_count;
    settings = layout.settings();
    elements = layout.elements();
    if (state) publish();
    return {};
  }
  void offer_initial(LargeVector<float> parameters) override {
    ++initial_count;
    if (state || holds_start) return;
    state.emplace(parameters.begin(), parameters.end());
    publish();
  }
  Result<void> contribute(std::uint64_t number, std::shared_ptr<const ContributedValues> values,
                          std::uint64_t tokens) override {
    if (contribute_error) return *contribute_error;
    if (number != step + 1 || is_open) return Error{ErrorCode::mismatch, "another step is due"};
    std::vector<float> room(values->size());
    const auto parameters = values->read(0, room);
    contributions.push_back({number, {parameters.begin(), parameters.end()}, tokens});
    is_open = true;
    if (decides) decide_half();
    return {};
  }
  void detached() override { ++detached_count; }
  void progressing() override { ++progress_count; }
  void leaving() override { ++leaving_count; }

  // The next state is half of the contribution; here from within contribute(), the hardest moment.
  void decide_half() {
    std::vector<float> next = contributions.back().parameters;
    for (float& x : next) x /= 2;
    decide(std::move(next));
  }
  void decide(std::vector<float> next, std::shared_ptr<StateDraft> draft = {}) {
    ++step;
    state = std::move(next);
    is_open = false;
    publish(std::move(draft));
  }
  void publish(std::shared_ptr<StateDraft> draft = {}) {
    Published published;
    published.step = step;
    published.record.bytes[0] = static_cast<std::byte>(step + 1);
    published.parameters = *state;
    published.final_step = step == final_step;
    published.contribution_open = is_open;
    if (!contributions.empty()) published.contributed = contributions.back().step;
    published.draft = std::move(draft);
    ranks->publish(published);
  }

  Ranks* ranks = nullptr;
  bool decides = false;      // at once, half of each contribution
  bool holds_start = false;  // the run does not begin
  std::optional<std::vector<float>> state;
  std::uint64_t step = 0;
  std::uint64_t final_step = std::numeric_limits<std::uint64_t>::max();
  bool is_open = false;
  std::optional<Error> attach_error, contribute_error;
  int attached_count = 0, detached_count = 0, initial_count = 0, progress_count = 0,
      leaving_count = 0;
  std::string settings;
  std::uint64_t elements = 0;
  std::vector<Contribution> contributions;
};

}  // namespace isthmus::inter

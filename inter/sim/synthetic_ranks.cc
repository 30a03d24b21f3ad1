#include "inter/sim/synthetic_ranks.h"

namespace isthmus::inter::sim {

void SyntheticRanks::attach(OuterSteps& gateway) {
  gateway_ = &gateway;
  const auto attached = gateway.attached(layout_);
  if (!attached) {
    refused_ = true;
    return;
  }
  LargeVector<float> initial(layout_.elements());
  for (std::size_t i = 0; i < initial.size(); ++i) initial[i] = initial_value(i);
  gateway.offer_initial(std::move(initial));
}

void SyntheticRanks::detach() { gateway_ = nullptr; }

void SyntheticRanks::restart() {
  ++generation_;
  has_base_ = false;
  computing_ = false;
  contributed_step_ = 0;
  work_.clear();
  tokens_ = 0;
}

void SyntheticRanks::die() {
  if (gateway_) gateway_->detached();
  detach();
  restart();
  dead_ = true;
}

void SyntheticRanks::live() {
  dead_ = false;
  if (!std::exchange(hung_, false) || !computing_) return;
  computing_ = false;
  contribute();
}

void SyntheticRanks::publish(const Published& state) {
  kept_contribution_ = state.contributed;
  if (dead_) return;
  if (state.final_step) {
    done_ = true;
    ++generation_;
    return;
  }
  const bool again = has_base_ && state.step == base_step_;
  base_.assign(state.parameters.begin(), state.parameters.end());
  base_step_ = state.step;
  has_base_ = true;
  if (state.contribution_open) {
    // Made already: the next state follows.
    contributed_step_ = state.step + 1;
    computing_ = false;
    ++generation_;
    return;
  }
  if (again && contributed_step_ == state.step + 1) {
    // The gateway lost what it had taken: the same again.
    contribute();
    return;
  }
  if (again && computing_) return;  // a gateway came back; the work goes on
  if (!computing_ || contributed_step_ > 0) {
    // A new state after a contribution: begin anew. A state that came in the middle: the work so
    // far is kept.
    if (contributed_step_ >= state.step || !computing_) {
      work_.assign(base_.size(), 0);
      tokens_ = 0;
    }
  }
  contributed_step_ = 0;
  if (!computing_) schedule();
}

void SyntheticRanks::schedule() {
  computing_ = true;
  if (slowness_ > 1) ++slow_computations_;
  const auto generation = ++generation_;
  const auto time = static_cast<double>(compute_) * slowness_ * (0.7 + 0.6 * random_.uniform());
  for (auto& w : work_) w += static_cast<float>(static_cast<int>(random_.below(7)) - 3);
  tokens_ += 100 * (1 + random_.below(8));
  for (int part = 1; part <= 4; ++part)
    simulation_.after(static_cast<Nanoseconds>(time * part / 4), actor_, [this, generation, part] {
      if (generation != generation_ || hung_) return;
      if (gateway_) gateway_->progressing();
      if (part < 4) return;
      computing_ = false;
      contribute();
    });
}

void SyntheticRanks::contribute() {
  if (!gateway_ || !has_base_) {
    // Waits with its work for the gateway to come back.
    return;
  }
  if (hung_) {
    computing_ = true;
    return;
  }
  std::vector<float> parameters(base_.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] = base_[i] - work_[i];
  const auto step = base_step_ + 1;
  const auto copy = parameters;
  if (gateway_->contribute(step, std::make_shared<ValuesInVector>(std::move(parameters)),
                           tokens_)) {
    contributed_step_ = step;
    contributed_({step, base_, copy, tokens_});
    return;
  }
  // Too late for this step, or not a member: the work goes on from the next state.
  computing_ = true;
  const auto generation = ++generation_;
  simulation_.after(2 * kSecond, actor_, [this, generation] {
    if (generation != generation_ || hung_) return;
    if (gateway_) gateway_->progressing();
    computing_ = false;
    contribute();
  });
}

}  // namespace isthmus::inter::sim

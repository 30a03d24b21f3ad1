#include "inter/sim/synthetic_ranks.h"

namespace isthmus::inter::sim {

void SyntheticRanks::attach(OuterSteps& gateway) {
  gateway_ = &gateway;
  const auto attached = gateway.attached(layout_);
  if (!attached) {
    refused_ = true;
    return;
  }
  if (hung_) return;
  LargeVector<float> initial(layout_.elements());
  for (std::size_t i = 0; i < initial.size(); ++i) initial[i] = initial_value(i);
  gateway.offer_initial(std::move(initial));
}

void SyntheticRanks::detach() { gateway_ = nullptr; }

void SyntheticRanks::restart() {
  ++generation_;
  has_base_ = false;
  computing_ = false;
  given_ = open_ = false;
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
    ++generation_;
    return;
  }
  const bool other_record = state.step == base_step_ && state.record != base_record_;
  if (has_base_ && (state.run != base_run_ || other_record)) restart();
  if (has_base_ && state.step < base_step_) return;  // of a gateway that will catch up
  const bool again = has_base_ && state.step == base_step_;
  open_ = state.contribution_open;
  // Other than real ranks also of a repetition: a state that broken memory made may be forgotten
  // with its gateway, and work is counted from what the gateway has.
  base_.assign(state.parameters.begin(), state.parameters.end());
  if (again && given_) {
    if (!open_) contribute();
    return;
  }
  if (!again) {
    // What the gateway has not kept is still the ranks', and goes into the next contribution.
    if (!has_base_ || (given_ && state.contributed > base_step_)) {
      work_.assign(state.parameters.size(), 0);
      tokens_ = 0;
    }
    base_step_ = state.step;
    base_record_ = state.record;
    base_run_ = state.run;
    has_base_ = true;
    given_ = false;
  }
  if (!computing_ && !open_) schedule();
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

// Nothing is tried again: whatever becomes of it, the next state says so.
void SyntheticRanks::contribute() {
  if (hung_) {
    computing_ = true;
    return;
  }
  if (open_) return;  // there is one already: this work goes into the next
  given_ = true;
  if (!gateway_) return;  // until it comes back
  std::vector<float> parameters(base_.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] = base_[i] - work_[i];
  const auto step = base_step_ + 1;
  const auto copy = parameters;
  if (gateway_->contribute(step, std::make_shared<ValuesInVector>(std::move(parameters)), tokens_))
    contributed_({step, base_, copy, tokens_});
}

}  // namespace isthmus::inter::sim

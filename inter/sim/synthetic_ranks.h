// SyntheticRanks: what computes at a simulated site: nothing. After a while it contributes the
// state it has minus small integers, so that a lost or doubled contribution is off by whole
// numbers. Takes states and contributes as real ranks do (ATTACH.md). Lives in a process of its
// own, which a gateway's crash may or may not take along.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/random.h"
#include "inter/ranks.h"
#include "inter/sim/simulation.h"

namespace isthmus::inter::sim {

// Every site begins with the same parameters.
inline float initial_value(std::size_t element) { return static_cast<float>(element % 17) - 8; }

class SyntheticRanks final : public Ranks {
 public:
  struct Contributed {  // and taken by the gateway
    std::uint64_t step = 0;
    const std::vector<float>& base;
    const std::vector<float>& parameters;
    std::uint64_t tokens = 0;
  };
  // `actor`: whose events these are in the simulation. `compute`: what the inner steps take, ± 30
  // %. All references outlive it.
  SyntheticRanks(Simulation& simulation, const ModelLayout& layout, int actor, Nanoseconds compute,
                 Random random, std::function<void(const Contributed&)> contributed)
      : simulation_(simulation),
        layout_(layout),
        actor_(actor),
        compute_(compute),
        random_(random),
        contributed_(std::move(contributed)) {}

  void attach(OuterSteps& gateway);
  void detach();  // the gateway is gone
  void restart();
  // They stand still and keep what they have, which nobody is told, or end with all they had, until
  // live().
  void hang() { hung_ = true; }
  void die();
  void live();
  // They compute so many times as long, from the next contribution on.
  void slow_down(double factor) { slowness_ = factor; }
  std::uint64_t slow_computations() const { return slow_computations_; }  // begun so far
  bool attached_to(const OuterSteps& gateway) const { return gateway_ == &gateway; }
  bool reading() const override { return false; }
  bool all_took() const override { return true; }
  void forget() override {}
  void publish(const Published& state) override;
  void refuse(const Error&) override { refused_ = true; }
  std::vector<RankStatus> status() const override {
    return {{.loss = 1, .tokens_per_second = 1, .state = "computing"}};
  }
  bool refused() const { return refused_; }
  // Published::contributed, as it came last.
  std::uint64_t kept_contribution() const { return kept_contribution_; }

 private:
  void schedule();
  void contribute();

  Simulation& simulation_;
  const ModelLayout& layout_;
  const int actor_;
  const Nanoseconds compute_;
  Random random_;
  std::function<void(const Contributed&)> contributed_;
  OuterSteps* gateway_ = nullptr;
  std::uint64_t generation_ = 0;  // of scheduled work
  std::vector<float> base_, work_;
  std::uint64_t base_step_ = 0, kept_contribution_ = 0, tokens_ = 0;
  security::Digest base_record_, base_run_;
  bool has_base_ = false, computing_ = false, refused_ = false;
  bool given_ = false;  // the work since that state was handed over, taken or not
  bool open_ = false;   // the gateway has a contribution to its next step already
  bool hung_ = false, dead_ = false;
  double slowness_ = 1;
  std::uint64_t slow_computations_ = 0;
};

}  // namespace isthmus::inter::sim

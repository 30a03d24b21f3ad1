// The outer step as its header specifies it, element by element.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "kernels/outer_step.h"
#include "tests/kernels/outer_bits.h"

namespace isthmus::kernels {

// What a rule makes of a delta; and what holds it, as a kernel wants it.
struct Stepped {
  std::vector<float> agreed, momentum, agreed_at_hand, momentum_at_hand;

  explicit Stepped(std::size_t length, bool has_momentum)
      : agreed(length),
        momentum(has_momentum ? length : 0),
        agreed_at_hand(length),
        momentum_at_hand(momentum.size()) {}
  OuterStep step(std::optional<Nesterov> rule, std::span<const float> before,
                 std::span<const float> momentum_before) {
    return {.nesterov = rule,
            .agreed = before,
            .momentum = momentum_before,
            .next_agreed = agreed,
            .next_momentum = momentum,
            .agreed_at_hand = agreed_at_hand,
            .momentum_at_hand = momentum_at_hand};
  }
};

inline Stepped step_reference(const std::vector<float>& delta, std::optional<Nesterov> rule,
                              const std::vector<float>& agreed,
                              const std::vector<float>& momentum) {
  Stepped want(delta.size(), rule.has_value());
  for (std::size_t i = 0; i < delta.size(); ++i) {
    if (!rule) {
      want.agreed[i] = agreed[i] - delta[i];
      continue;
    }
    volatile float kept = rule->momentum_factor * momentum[i];
    volatile float m = kept + delta[i];
    volatile float ahead = rule->momentum_factor * m;
    volatile float direction = delta[i] + ahead;
    volatile float change = rule->rate * direction;
    want.momentum[i] = m;
    want.agreed[i] = agreed[i] - change;
  }
  return want;
}

inline void expect_step(const Stepped& got, const Stepped& want) {
  EXPECT_TRUE(same_bits(got.agreed, want.agreed)) << want.agreed.size();
  EXPECT_TRUE(same_bits(got.momentum, want.momentum)) << want.agreed.size();
  EXPECT_TRUE(same_bits(got.agreed_at_hand, want.agreed)) << want.agreed.size();
  EXPECT_TRUE(same_bits(got.momentum_at_hand, want.momentum)) << want.agreed.size();
}

inline const std::array<std::optional<Nesterov>, 2> kRules = {std::nullopt, Nesterov{0.7F, 0.9F}};

}  // namespace isthmus::kernels

#include "kernels/outer_step.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/kernels/outer_step_reference.h"

namespace isthmus::kernels {
namespace {

TEST(OuterStep, IsTheRule) {
  on_every_target([] {
    for (const std::size_t length : kLengths)
      for (const auto& rule : kRules) {
        const auto delta = mixed_values("delta", length);
        auto agreed = mixed_values("agreed", length);
        auto momentum = mixed_values("momentum", rule ? length : 0);
        const auto want = step_reference(delta, rule, agreed, momentum);
        Stepped got(length, rule.has_value());
        outer_step(delta, got.step(rule, agreed, momentum));
        expect_step(got, want);
        got.agreed = agreed;  // in place
        got.momentum = momentum;
        outer_step(delta, got.step(rule, got.agreed, got.momentum));
        expect_step(got, want);
      }
  });
}

TEST(OuterStep, WritesItsOwnAtAnyAddress) {
  on_every_target([] {
    for (const auto& rule : kRules)
      for (const std::size_t length : {1, 2, 3, 4, 15, 16, 17, 18, 19, 63, 64})
        for (std::size_t offset = 0; offset < kOffsets; ++offset) {
          const auto delta = mixed_values("delta", length);
          const auto agreed = mixed_values("agreed", length);
          const auto momentum = mixed_values("momentum", rule ? length : 0);
          Guarded next(length, offset), next_momentum(momentum.size(), offset);
          Guarded at_hand(length, offset), momentum_at_hand(momentum.size(), offset);
          outer_step(delta, {.nesterov = rule,
                             .agreed = agreed,
                             .momentum = momentum,
                             .next_agreed = next.span(),
                             .next_momentum = next_momentum.span(),
                             .agreed_at_hand = at_hand.span(),
                             .momentum_at_hand = momentum_at_hand.span()});
          const auto want = step_reference(delta, rule, agreed, momentum);
          ASSERT_TRUE(same_bits(next.values(), want.agreed)) << length << " at " << offset;
          ASSERT_TRUE(same_bits(next_momentum.values(), want.momentum));
          ASSERT_TRUE(same_bits(at_hand.values(), want.agreed));
          ASSERT_TRUE(same_bits(momentum_at_hand.values(), want.momentum));
        }
  });
}

}  // namespace
}  // namespace isthmus::kernels

#include "runtime/inner_optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/rate_ranges.h"
#include "tests/runtime/small_model.h"

namespace isthmus::runtime {
namespace {

TEST(RateSchedule, WarmsUpThenFollowsTheCosine) {
  const RateSchedule schedule{
      .peak = 2e-3, .warmup_steps = 20, .steps = 240, .final_fraction = 0.1};
  for (const std::int64_t t : {0, 1, 19, 20, 100, 239}) {
    const double x = static_cast<double>(t);
    const double expected =
        2e-3 * std::min(1.0, (x + 1) / 20) * (0.55 + 0.45 * std::cos(std::numbers::pi * x / 240));
    EXPECT_NEAR(schedule.rate(t), expected, 1e-15) << t;
  }
}

TEST(RateSchedule, EachKeepsTheFinalRate) {
  for (const auto shape : {RateShape::cosine, RateShape::linear, RateShape::wsd}) {
    const RateSchedule schedule{
        .shape = shape, .peak = 1, .warmup_steps = 0, .steps = 10, .final_fraction = 0.25};
    EXPECT_DOUBLE_EQ(schedule.rate(0), 1);
    EXPECT_DOUBLE_EQ(schedule.rate(10), 0.25);
    EXPECT_DOUBLE_EQ(schedule.rate(1000), 0.25);
  }
}

TEST(RateSchedule, ConstantStaysAtThePeak) {
  const RateSchedule schedule{
      .shape = RateShape::constant, .peak = 3, .warmup_steps = 4, .steps = 10};
  EXPECT_DOUBLE_EQ(schedule.rate(0), 0.75);
  for (const std::int64_t t : {3, 9, 10, 1000}) EXPECT_DOUBLE_EQ(schedule.rate(t), 3);
}

TEST(RateSchedule, LinearIsAStraightLine) {
  const RateSchedule schedule{
      .shape = RateShape::linear, .peak = 1, .warmup_steps = 0, .steps = 8, .final_fraction = 0.5};
  for (std::int64_t t = 0; t <= 8; ++t)
    EXPECT_DOUBLE_EQ(schedule.rate(t), 1 - static_cast<double>(t) / 16) << t;
}

TEST(RateSchedule, StaysAndThenDecays) {
  RateSchedule schedule{.shape = RateShape::wsd,
                        .peak = 2,
                        .warmup_steps = 2,
                        .steps = 100,
                        .decay_steps = 10,
                        .final_fraction = 0};
  EXPECT_DOUBLE_EQ(schedule.rate(0), 1);
  EXPECT_DOUBLE_EQ(schedule.rate(1), 2);
  EXPECT_DOUBLE_EQ(schedule.rate(90), 2);
  EXPECT_DOUBLE_EQ(schedule.rate(95), 1);
  EXPECT_DOUBLE_EQ(schedule.rate(99), 0.2);
  schedule.decay_steps = 0;  // a fifth
  EXPECT_DOUBLE_EQ(schedule.rate(80), 2);
  EXPECT_DOUBLE_EQ(schedule.rate(90), 1);
  schedule.steps = 4;  // too few for a fifth of a step
  EXPECT_DOUBLE_EQ(schedule.rate(3), 2);
}

TEST(RateSchedule, ALongerRunStaysTheSameUntilItDecays) {
  const RateSchedule shorter{.shape = RateShape::wsd, .steps = 100, .decay_steps = 30};
  auto longer = shorter;
  longer.steps = 1000;
  for (std::int64_t t = 0; t <= 70; ++t) EXPECT_EQ(shorter.rate(t), longer.rate(t)) << t;
  EXPECT_LT(shorter.rate(71), longer.rate(71));
}

TEST(SpikeGuard, TakesMultiplesOfTheMedian) {
  SpikeGuard guard;
  for (int i = 0; i < 15; ++i) guard.add(i + 1);
  EXPECT_EQ(guard.limit(3), 0);  // too few to know what is usual
  guard.add(1000);
  EXPECT_EQ(guard.limit(3), 3 * 9);  // of 1 to 15 and 1000, the upper one of the two in the middle
  EXPECT_EQ(guard.limit(0), 0);
}

TEST(SpikeGuard, WhatStaysLongBecomesUsual) {
  SpikeGuard guard;
  for (int i = 0; i < 1000; ++i) guard.add(1);
  EXPECT_EQ(guard.norms().size(), SpikeGuard::kNorms);
  for (std::size_t i = 0; i < SpikeGuard::kNorms / 2 - 1; ++i) guard.add(50);
  EXPECT_EQ(guard.limit(2), 2);
  guard.add(50);
  EXPECT_EQ(guard.limit(2), 100);
}

TEST(SpikeGuard, GoesOnWhereAnotherEnded) {
  SpikeGuard one;
  for (int i = 0; i < 100; ++i) one.add(std::cos(i) + 2);
  SpikeGuard other(one.norms());
  EXPECT_EQ(other.limit(2), one.limit(2));
  for (auto* guard : {&one, &other}) guard->add(7);
  EXPECT_EQ(other.norms(), one.norms());
  SpikeGuard from_too_many(std::vector<double>(1000, 3));
  EXPECT_EQ(from_too_many.norms().size(), SpikeGuard::kNorms);
}

// ---- rates of some tensors

std::vector<float> updated(const std::vector<RateFactor>& rates, double rate, Precision precision,
                           std::vector<CanonicalTensor>& tensors) {
  ThreadPool pool({-1});
  auto shape = small_shape();
  shape.precision = precision;
  auto model = make_model(pool, small_config(), shape);
  model->set_rates(rates);
  for (int step = 0; step < 3; ++step) {
    model->zero_gradients();
    auto gradients = model->gradients();
    for (std::size_t i = 0; i < gradients.size(); ++i)
      gradients[i] = static_cast<float>(std::sin(static_cast<double>(i * 7 + step)));
    EXPECT_TRUE(model->update({}, rate, 1).applied);
  }
  tensors.assign(model->tensors().begin(), model->tensors().end());
  return {model->parameters().begin(), model->parameters().end()};
}

TEST(RateFactors, TensorsHaveTheRateOfTheFirstThatFits) {
  const std::vector<RateFactor> rates{{"*.layers.1.self_attn.k_proj.weight", 0.5},
                                      {"*.layers.1.*", 0.125},
                                      {"model.embed_tokens.weight", 2}};
  for (const auto precision : {Precision::f32, Precision::bf16}) {
    std::vector<CanonicalTensor> tensors;
    const auto with_rates = updated(rates, 0.01, precision, tensors);
    int differing = 0;
    for (const auto& tensor : tensors) {
      const auto fitting = std::ranges::find_if(
          rates, [&](const RateFactor& rate) { return fits_pattern(rate.tensors, tensor.name); });
      const double factor = fitting == rates.end() ? 1 : fitting->factor;
      differing += factor != 1 ? 1 : 0;
      // The whole model at that rate: the updates of a tensor are its own affair.
      std::vector<CanonicalTensor> same;
      const auto whole = updated({}, 0.01 * factor, precision, same);
      const auto first = static_cast<std::ptrdiff_t>(tensor.first);
      const auto elements = static_cast<std::ptrdiff_t>(tensor.elements());
      EXPECT_TRUE(std::equal(with_rates.begin() + first, with_rates.begin() + first + elements,
                             whole.begin() + first))
          << tensor.name;
    }
    EXPECT_EQ(differing, 10);  // nine of a layer, and the embedding
  }
}

TEST(RateFactors, CopiesForTheProductsFollow) {
  ThreadPool pool({-1});
  auto shape = small_shape();
  shape.precision = Precision::bf16;
  auto model = make_model(pool, small_config(), shape);
  const std::vector<RateFactor> rates{{"*.k_proj.weight", 0.5}};
  model->set_rates(rates);
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.tokens()), 65);
  model->zero_gradients();
  const auto loss = model->forward_backward(tokens, tokens);
  model->update({}, 0.05, loss.counted);
  const auto after = model->forward_loss(tokens, tokens).sum;
  model->parameters_changed();  // makes the copies anew
  EXPECT_EQ(model->forward_loss(tokens, tokens).sum, after);
  EXPECT_NE(after, loss.sum);
}

TEST(RateFactors, AreRefusedWhereTheyMeanNothing) {
  const auto refusal = [](const std::vector<RateFactor>& rates, const FineTuning& tuning = {}) {
    const auto result = check(rates, small_config(), tuning);
    return result ? std::string("none") : result.error().text();
  };
  EXPECT_EQ(refusal({{"*embed*", 1}, {"*norm*", 0.1}}), "none");
  EXPECT_EQ(refusal({{"*", 0}}),
            "the factor of \"*\" is 0, but must be above 0: what is not to train at all is frozen");
  EXPECT_EQ(refusal({{"*q_project*", 2}}),
            "no tensor that trains fits \"*q_project*\"; they are named as in a checkpoint, such "
            "as model.embed_tokens.weight");
  // What is frozen has no rate.
  EXPECT_EQ(refusal({{"*mlp*", 2}}, {.frozen = {"*mlp*"}}),
            "no tensor that trains fits \"*mlp*\"; they are named as in a checkpoint, such as "
            "model.embed_tokens.weight");
}

}  // namespace
}  // namespace isthmus::runtime

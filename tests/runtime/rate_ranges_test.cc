#include "runtime/rate_ranges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/runtime/small_model.h"

namespace isthmus::runtime {
namespace {

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

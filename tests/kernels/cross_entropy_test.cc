#include "kernels/cross_entropy.h"

#include "reference.h"

namespace isthmus::kernels {
namespace {

double loss_of(const std::vector<double>& logits, std::int32_t target) {
  double largest = logits[0];
  for (const double value : logits) largest = std::max(largest, value);
  double sum = 0;
  for (const double value : logits) sum += std::exp(value - largest);
  return largest + std::log(sum) - logits[static_cast<std::size_t>(target)];
}

TEST(CrossEntropy, AgreesWithDouble) {
  for (const std::int64_t vocabulary : {1, 2, 97, 260, 1001})
    for (const DType in : kDTypes)
      for (const DType out : kDTypes) {
        SCOPED_TRACE(vocabulary);
        const std::int64_t rows = 11;
        const float factor = 0.25F;
        const Matrix logits = Matrix::random("logits", in, rows, vocabulary, 3, 4.0);
        std::vector<std::int32_t> targets;
        for (std::int64_t r = 0; r < rows; ++r)
          targets.push_back(r % 4 == 1 ? kIgnoredTarget
                                       : static_cast<std::int32_t>((r * 37) % vocabulary));
        double expected = 0;
        std::vector<double> gradient;
        for (std::int64_t r = 0; r < rows; ++r) {
          std::vector<double> row;
          for (std::int64_t c = 0; c < vocabulary; ++c) row.push_back(logits.at(r, c));
          const std::int32_t target = targets[static_cast<std::size_t>(r)];
          if (target == kIgnoredTarget) {
            gradient.insert(gradient.end(), static_cast<std::size_t>(vocabulary), 0.0);
            continue;
          }
          expected += loss_of(row, target);
          const auto d = numeric_gradient(row, {factor}, [&](const std::vector<double>& x) {
            return std::vector<double>{loss_of(x, target)};
          });
          gradient.insert(gradient.end(), d.begin(), d.end());
        }
        on_every_target_and_thread_count([&](ThreadPool& pool) {
          std::vector<double> losses(static_cast<std::size_t>(rows));
          const auto sum = cross_entropy_forward(pool, logits.view(), targets, losses);
          EXPECT_EQ(sum.tokens, 8);
          EXPECT_NEAR(sum.loss, expected, 2e-6 * (1 + std::fabs(expected)));
          Matrix dlogits(out, rows, vocabulary, 2);
          std::vector<double> again(losses.size());
          const auto fused = cross_entropy_forward_backward(pool, logits.view(), targets, factor,
                                                            dlogits.view(), again);
          EXPECT_EQ(fused.loss, sum.loss);
          EXPECT_EQ(fused.tokens, sum.tokens);
          EXPECT_EQ(losses, again);
          EXPECT_EQ(losses[1], 0.0);
          if (vocabulary > 1) {
            EXPECT_LT(relative_error(dlogits.values(), gradient), 2 * tolerance(out));
          }
          Matrix in_place = logits;
          cross_entropy_forward_backward(pool, logits.view(), targets, factor, in_place.view(),
                                         again);
          Matrix overwritten = logits;
          cross_entropy_forward_backward(pool, overwritten.view(), targets, factor,
                                         overwritten.view(), again);
          EXPECT_TRUE(overwritten.same_bits(in_place));
          EXPECT_TRUE(dlogits.padding_is_untouched());
          return std::vector<Matrix>{dlogits, overwritten};
        });
      }
}

TEST(CrossEntropy, LargeLogitsStayFinite) {
  on_every_target_and_thread_count([](ThreadPool& pool) {
    Matrix logits(DType::f32, 1, 40);
    for (std::int64_t c = 0; c < 40; ++c) logits.set(0, c, c == 7 ? 3e4 : -3e4);
    Matrix dlogits(DType::f32, 1, 40);
    std::vector<double> losses(1);
    const std::vector<std::int32_t> right = {7};
    EXPECT_EQ(cross_entropy_forward(pool, logits.view(), right, losses).loss, 0.0);
    const std::vector<std::int32_t> wrong = {8};
    const auto sum =
        cross_entropy_forward_backward(pool, logits.view(), wrong, 1.0F, dlogits.view(), losses);
    EXPECT_EQ(sum.loss, 6e4);
    EXPECT_EQ(dlogits.at(0, 7), 1.0);
    EXPECT_EQ(dlogits.at(0, 8), -1.0);
    return std::vector<Matrix>{dlogits};
  });
}

// A step that is not finite must be noticed by its loss.
TEST(CrossEntropy, NaNStays) {
  on_every_target_and_thread_count([](ThreadPool& pool) {
    Matrix logits(DType::f32, 1, 37);
    for (std::int64_t c = 0; c < 37; ++c) logits.set(0, c, c == 5 ? NAN : 1.0);
    std::vector<double> losses(1);
    const std::vector<std::int32_t> targets = {7};
    EXPECT_TRUE(std::isnan(cross_entropy_forward(pool, logits.view(), targets, losses).loss));
    return std::vector<Matrix>{};
  });
}

}  // namespace
}  // namespace isthmus::kernels

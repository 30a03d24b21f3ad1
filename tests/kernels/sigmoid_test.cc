#include "kernels/sigmoid.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/bf16.h"

namespace isthmus::kernels {
namespace {

TEST(Sigmoid, IsThatOfFp64WithItsSlope) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> x{-kInfinity, -200.0F, -87.5F, -3.25F, 0.0F, 0.5F, 17.0F, 200.0F, kInfinity};
  const auto n = static_cast<std::int64_t>(x.size());
  std::vector<float> y(x.size()), dy(x.size(), -1.5F), dx(x.size());
  std::vector<bf16_t> rounded(x.size());
  const auto rows = [&](auto& values, DType dtype = DType::f32) {
    return Rows(values.data(), dtype, n, 1, 1);
  };
  sigmoid_forward(rows(x), rows(y));
  sigmoid_backward(rows(dy), rows(y), rows(dx));
  sigmoid_backward(rows(dy), rows(y), rows(rounded, DType::bf16));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = 1 / (1 + std::exp(-static_cast<double>(x[i])));
    EXPECT_NEAR(static_cast<double>(y[i]), expected, 1e-7) << x[i];
    EXPECT_NEAR(static_cast<double>(dx[i]), -1.5 * expected * (1 - expected), 1e-7) << x[i];
    EXPECT_EQ(rounded[i].bits, to_bf16(dx[i]).bits);
  }
  EXPECT_EQ(y.front(), 0.0F);
  EXPECT_EQ(y.back(), 1.0F);
}

}  // namespace
}  // namespace isthmus::kernels

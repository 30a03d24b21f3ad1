#include "kernels/gelu.h"

#include <limits>
#include <numbers>
#include <string_view>

#include "reference.h"

namespace isthmus::kernels {
namespace {

double normal_distribution(double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; }
double normal_density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi); }

std::vector<double> gelu(std::vector<double> x) {
  for (double& value : x) value *= normal_distribution(value);
  return x;
}

std::vector<double> gelu_gradient(const std::vector<double>& x, std::vector<double> dy) {
  for (std::size_t i = 0; i < x.size(); ++i)
    dy[i] *= normal_distribution(x[i]) + x[i] * normal_density(x[i]);
  return dy;
}

struct GeluCase {
  std::int64_t width;
  DType x, y, dy, dx;
};

class Gelu : public testing::TestWithParam<GeluCase> {};

TEST_P(Gelu, AgreesWithDouble) {
  const auto [width, x_type, y_type, dy_type, dx_type] = GetParam();
  const std::int64_t rows = 9;
  const Matrix x = Matrix::random("x", x_type, rows, width, 3, 2.0);
  const Matrix dy = Matrix::random("dy", dy_type, rows, width, 2);
  const auto expected = gelu(x.values());
  const auto expected_dx = gelu_gradient(x.values(), dy.values());
  on_every_target_and_thread_count([&](ThreadPool& pool) {
    Matrix y(y_type, rows, width, 4);
    gelu_forward(pool, x.view(), y.view());
    EXPECT_LT(relative_error(y.values(), expected), 1.5 * tolerance(y_type));
    if (x_type == y_type) {
      Matrix in_place = x;
      gelu_forward(pool, in_place.view(), in_place.view());
      EXPECT_EQ(in_place.values(), y.values());
    }
    Matrix dx(dx_type, rows, width, 1);
    gelu_backward(pool, dy.view(), x.view(), dx.view());
    EXPECT_LT(relative_error(dx.values(), expected_dx), 1.5 * tolerance(dx_type));
    Matrix again(y_type, rows, width, 2);
    const Rows y_again = again.view();
    Matrix over_x = x, over_dy = dy;
    if (x_type == dx_type) {
      gelu_backward(pool, dy.view(), over_x.view(), over_x.view(), &y_again);
      EXPECT_EQ(over_x.values(), dx.values());
      EXPECT_EQ(again.values(), y.values());
    }
    if (dy_type == dx_type) {
      gelu_backward(pool, over_dy.view(), x.view(), over_dy.view(), &y_again);
      EXPECT_EQ(over_dy.values(), dx.values());
      EXPECT_EQ(again.values(), y.values());
    }
    EXPECT_TRUE(y.padding_is_untouched() && again.padding_is_untouched() &&
                dx.padding_is_untouched());
    return std::vector<Matrix>{y, dx};
  });
}

std::vector<GeluCase> gelu_cases() {
  std::vector<GeluCase> all;
  for (const std::int64_t width : {1, 33, 97, 704})
    for (const DType x : kDTypes)
      for (const DType y : kDTypes)
        for (const DType dy : kDTypes)
          for (const DType dx : kDTypes) all.push_back({width, x, y, dy, dx});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Shapes, Gelu, testing::ValuesIn(gelu_cases()));

TEST(GeluRange, IsExactToTheTail) {
  const std::int64_t width = 28001;
  Matrix x(DType::f32, 1, width), ones(DType::f32, 1, width);
  for (std::int64_t i = 0; i < width; ++i) {
    x.set(0, i, static_cast<double>(i - 14000) / 1000);  // -14 … 14
    ones.set(0, i, 1);
  }
  ThreadPool pool(unpinned(1));
  for (const VectorTarget& target : vector_targets()) {
    SCOPED_TRACE(target.name);
    const ForcedVectorTarget forced(target);
    Matrix y(DType::f32, 1, width), dx(DType::f32, 1, width);
    gelu_forward(pool, x.view(), y.view());
    gelu_backward(pool, ones.view(), x.view(), dx.view());
    double absolute = 0, relative = 0, absolute_slope = 0, relative_slope = 0;
    for (std::int64_t i = 0; i < width; ++i) {
      const double at = x.at(0, i);
      if (at == 0) continue;
      const double slope = normal_distribution(at) + at * normal_density(at);
      absolute = std::max(absolute, std::abs(y.at(0, i) / at - normal_distribution(at)));
      absolute_slope = std::max(absolute_slope, std::abs(dx.at(0, i) - slope));
      if (at > 0 || at < -12.5) continue;  // below, what is left is no normal f32
      relative = std::max(relative, std::abs(y.at(0, i) / (at * normal_distribution(at)) - 1));
      if (at < -2) relative_slope = std::max(relative_slope, std::abs(dx.at(0, i) / slope - 1));
    }
    // The baseline does not fuse, and loses what squaring rounds off.
    const double tail = std::string_view(target.name).starts_with("AVX") ? 1e-6 : 5e-6;
    EXPECT_LT(absolute, 2e-7);
    EXPECT_LT(relative, tail);
    EXPECT_LT(absolute_slope, 3e-7);
    EXPECT_LT(relative_slope, tail);
  }
}

// As torch.nn.functional.gelu: no limit is taken, so that a run that has diverged is seen to have.
TEST(GeluRange, InfinityAndNaN) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  // One vector of 16 and single lanes.
  const std::vector<double> inputs = {infinity, -infinity, nan,      3e38,      -3e38, 20,  -20,
                                      0,        -0.0,      15,       -15,       40,    -40, 1e-30,
                                      -1e-30,   1,         infinity, -infinity, nan};
  on_every_target_and_thread_count([&](ThreadPool& pool) {
    const auto width = static_cast<std::int64_t>(inputs.size());
    Matrix x(DType::f32, 1, width), y(DType::f32, 1, width);
    Matrix ones(DType::f32, 1, width), dx(DType::f32, 1, width);
    for (std::int64_t i = 0; i < width; ++i) {
      x.set(0, i, inputs[static_cast<std::size_t>(i)]);
      ones.set(0, i, 1);
    }
    gelu_forward(pool, x.view(), y.view());
    gelu_backward(pool, ones.view(), x.view(), dx.view());
    for (const std::int64_t i : {0, 16}) EXPECT_EQ(y.at(0, i), infinity);
    for (const std::int64_t i : {1, 2, 17, 18}) EXPECT_TRUE(std::isnan(y.at(0, i))) << i;
    for (const std::int64_t i : {0, 1, 2, 16, 17, 18}) EXPECT_TRUE(std::isnan(dx.at(0, i))) << i;
    for (const std::int64_t i : {3, 5, 9, 11}) {
      EXPECT_EQ(y.at(0, i), x.at(0, i));
      EXPECT_EQ(dx.at(0, i), 1.0);
    }
    for (const std::int64_t i : {4, 6, 12}) {
      EXPECT_EQ(y.at(0, i), 0.0);
      EXPECT_EQ(dx.at(0, i), 0.0);
    }
    for (const std::int64_t i : {7, 8, 13, 14}) {
      EXPECT_NEAR(y.at(0, i), x.at(0, i) / 2, 1e-36);
      EXPECT_NEAR(dx.at(0, i), 0.5, 2e-7);
    }
    return std::vector<Matrix>();
  });
}

}  // namespace
}  // namespace isthmus::kernels

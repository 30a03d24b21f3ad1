#include "kernels/rms_norm.h"

#include "reference.h"

namespace isthmus::kernels {
namespace {

constexpr double kEpsilon = 1e-5;

// x [rows * d], weight [d], one after the other in `inputs`.
std::vector<double> norm(const std::vector<double>& inputs, std::int64_t rows, std::int64_t d) {
  std::vector<double> y;
  for (std::int64_t r = 0; r < rows; ++r) {
    const double* x = inputs.data() + r * d;
    double sum = 0;
    for (std::int64_t i = 0; i < d; ++i) sum += x[i] * x[i];
    const double inverse = 1 / std::sqrt(sum / static_cast<double>(d) + kEpsilon);
    for (std::int64_t i = 0; i < d; ++i)
      y.push_back(x[i] * inverse * inputs[static_cast<std::size_t>(rows * d + i)]);
  }
  return y;
}

struct RmsNormCase {
  std::int64_t rows, d;
  DType x, y;
};

class RmsNorm : public testing::TestWithParam<RmsNormCase> {};

TEST_P(RmsNorm, AgreesWithDouble) {
  const auto [rows, d, x_type, y_type] = GetParam();
  const Matrix x = Matrix::random("x", x_type, rows, d, 3);
  const Matrix weight = Matrix::random("weight", DType::f32, 1, d);
  const Matrix dy = Matrix::random("dy", y_type, rows, d, 5);
  const Matrix before = Matrix::random("before", x_type, rows, d, 2);
  std::vector<double> inputs = x.values();
  for (const double w : weight.values()) inputs.push_back(w);
  const auto f = [&](const std::vector<double>& in) { return norm(in, rows, d); };
  const auto expected = f(inputs);
  const auto gradient = numeric_gradient(inputs, dy.values(), f);
  const auto size = static_cast<std::ptrdiff_t>(rows * d);
  const std::vector<double> dx_expected(gradient.begin(), gradient.begin() + size);
  const std::vector<double> dweight_expected(gradient.begin() + size, gradient.end());

  on_every_target_and_thread_count([&](ThreadPool& pool) {
    Matrix y(y_type, rows, d, 1);
    Matrix inverse(DType::f32, 1, rows);
    rms_norm_forward(pool, x.view(), floats(weight), static_cast<float>(kEpsilon), y.view(),
                     floats(inverse));
    EXPECT_LT(relative_error(y.values(), expected), tolerance(y_type));

    std::vector<float> scratch(rms_norm_scratch_floats(rows, d));
    Matrix dx(x_type, rows, d, 2);
    Matrix dweight = Matrix::random("dweight", DType::f32, 1, d);
    const std::vector<double> dweight_before = dweight.values();
    rms_norm_backward(pool, dy.view(), x.view(), floats(weight), floats(inverse), dx.view(), false,
                      floats(dweight), scratch);
    EXPECT_LT(relative_error(dx.values(), dx_expected), 4 * tolerance(x_type));
    std::vector<double> added = dweight.values();
    for (std::size_t i = 0; i < added.size(); ++i) added[i] -= dweight_before[i];
    EXPECT_LT(relative_error(added, dweight_expected), 4 * tolerance(DType::f32));

    Matrix dx_added = before;
    Matrix again(y_type, rows, d, 3);
    const Rows y_again = again.view();
    rms_norm_backward(pool, dy.view(), x.view(), floats(weight), floats(inverse), dx_added.view(),
                      true, {}, {}, &y_again);
    EXPECT_EQ(again.values(), y.values());
    EXPECT_TRUE(again.padding_is_untouched());
    std::vector<double> sum = before.values();
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += dx_expected[i];
    EXPECT_LT(relative_error(dx_added.values(), sum), 4 * tolerance(x_type));
    EXPECT_TRUE(y.padding_is_untouched() && dx.padding_is_untouched());
    return std::vector<Matrix>{y, inverse, dx, dweight, dx_added};
  });
}

std::vector<RmsNormCase> rms_norm_cases() {
  std::vector<RmsNormCase> all;
  for (const auto& [rows, d] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {2, 3}, {1, 48}, {3, 97}, {5, 33}, {7, 64}})
    for (const DType x : kDTypes)
      for (const DType y : kDTypes) all.push_back({rows, d, x, y});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Shapes, RmsNorm, testing::ValuesIn(rms_norm_cases()));

// Many tasks, so that dweight is summed over a tree.
TEST(RmsNormTree, WeightGradientOfManyRows) {
  const std::int64_t rows = 3000;
  const std::int64_t d = 50;
  const Matrix x = Matrix::random("x", DType::f32, rows, d);
  const Matrix dy = Matrix::random("dy", DType::f32, rows, d);
  const Matrix weight = Matrix::random("weight", DType::f32, 1, d);
  const auto expected = norm_weight_gradient(x, dy, kEpsilon);
  on_every_target_and_thread_count([&](ThreadPool& pool) {
    Matrix y(DType::f32, rows, d);
    Matrix inverse(DType::f32, 1, rows);
    Matrix dx(DType::f32, rows, d);
    Matrix dweight(DType::f32, 1, d);
    for (float& value : floats(dweight)) value = 0;
    std::vector<float> scratch(rms_norm_scratch_floats(rows, d));
    rms_norm_forward(pool, x.view(), floats(weight), static_cast<float>(kEpsilon), y.view(),
                     floats(inverse));
    rms_norm_backward(pool, dy.view(), x.view(), floats(weight), floats(inverse), dx.view(), false,
                      floats(dweight), scratch);
    EXPECT_LT(relative_error(dweight.values(), expected), 4 * tolerance(DType::f32));
    return std::vector<Matrix>{dweight};
  });
}

}  // namespace
}  // namespace isthmus::kernels

#include "kernels/layer_norm.h"

#include "reference.h"

namespace isthmus::kernels {
namespace {

constexpr double kLayerNormEpsilon = 1e-5;

// x [rows * d], weight [d] and bias [d], one after the other in `inputs`.
std::vector<double> layer_norm(const std::vector<double>& inputs, std::int64_t rows,
                               std::int64_t d) {
  std::vector<double> y;
  const double* weight = inputs.data() + rows * d;
  const double* bias = weight + d;
  for (std::int64_t r = 0; r < rows; ++r) {
    const double* x = inputs.data() + r * d;
    double mean = 0;
    for (std::int64_t i = 0; i < d; ++i) mean += x[i] / static_cast<double>(d);
    double variance = 0;
    for (std::int64_t i = 0; i < d; ++i)
      variance += (x[i] - mean) * (x[i] - mean) / static_cast<double>(d);
    for (std::int64_t i = 0; i < d; ++i)
      y.push_back((x[i] - mean) / std::sqrt(variance + kLayerNormEpsilon) * weight[i] + bias[i]);
  }
  return y;
}

struct LayerNormCase {
  std::int64_t rows, d;
  DType x, y, dx;
};

class LayerNorm : public testing::TestWithParam<LayerNormCase> {};

TEST_P(LayerNorm, AgreesWithDouble) {
  const auto [rows, d, x_type, y_type, dx_type] = GetParam();
  const Matrix x = Matrix::random("x", x_type, rows, d, 3);
  const Matrix weight = Matrix::random("weight", DType::f32, 1, d);
  const Matrix bias = Matrix::random("bias", DType::f32, 1, d);
  const Matrix dy = Matrix::random("dy", y_type, rows, d, 5);
  const Matrix before = Matrix::random("before", dx_type, rows, d, 2);
  std::vector<double> inputs = x.values();
  for (const Matrix* more : {&weight, &bias})
    for (const double value : more->values()) inputs.push_back(value);
  const auto f = [&](const std::vector<double>& in) { return layer_norm(in, rows, d); };
  const auto expected = f(inputs);
  const auto gradient = numeric_gradient(inputs, dy.values(), f);
  const auto size = static_cast<std::ptrdiff_t>(rows * d);
  const auto at_bias = gradient.end() - static_cast<std::ptrdiff_t>(d);
  const std::vector<double> expected_dx(gradient.begin(), gradient.begin() + size);
  const std::vector<double> expected_dweight(gradient.begin() + size, at_bias);
  const std::vector<double> expected_dbias(at_bias, gradient.end());

  on_every_target_and_thread_count([&](ThreadPool& pool) {
    Matrix y(y_type, rows, d, 1);
    Matrix mean(DType::f32, 1, rows), inverse(DType::f32, 1, rows);
    const auto forward = [&](const Matrix& from, const Matrix& to) {
      layer_norm_forward(pool, from.view(), floats(weight), floats(bias),
                         static_cast<float>(kLayerNormEpsilon), to.view(), floats(mean),
                         floats(inverse));
    };
    forward(x, y);
    EXPECT_LT(relative_error(y.values(), expected), tolerance(y_type));
    if (x_type == y_type) {
      Matrix in_place = x;
      forward(in_place, in_place);
      EXPECT_EQ(in_place.values(), y.values());
    }

    std::vector<float> scratch(layer_norm_scratch_floats(rows, d), 7.0F);
    const auto backward = [&](const Matrix& g, const Matrix& dx, bool accumulate,
                              std::span<float> dweight, std::span<float> dbias) {
      layer_norm_backward(pool, g.view(), x.view(), floats(weight), floats(mean), floats(inverse),
                          dx.view(), accumulate, dweight, dbias,
                          dweight.empty() ? std::span<float>() : std::span(scratch));
    };
    const auto less = [](std::vector<double> sum, const std::vector<double>& part) {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] -= part[i];
      return sum;
    };
    Matrix dx(dx_type, rows, d, 2);
    Matrix dweight = weight, dbias = bias;  // whatever is there is added to
    backward(dy, dx, false, floats(dweight), floats(dbias));
    EXPECT_LT(relative_error(dx.values(), expected_dx), 4 * tolerance(dx_type));
    EXPECT_LT(relative_error(less(dweight.values(), weight.values()), expected_dweight), 1e-5);
    EXPECT_LT(relative_error(less(dbias.values(), bias.values()), expected_dbias), 1e-5);
    if (y_type == dx_type) {
      Matrix in_place = dy;
      backward(in_place, in_place, false, {}, {});
      EXPECT_EQ(in_place.values(), dx.values());
    }

    Matrix added = before;
    backward(dy, added, true, {}, {});
    std::vector<double> sum = before.values();
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += expected_dx[i];
    EXPECT_LT(relative_error(added.values(), sum), 4 * tolerance(dx_type));
    EXPECT_TRUE(y.padding_is_untouched() && dx.padding_is_untouched() &&
                added.padding_is_untouched());
    return std::vector<Matrix>{y, mean, inverse, dx, dweight, dbias, added};
  });
}

std::vector<LayerNormCase> layer_norm_cases() {
  std::vector<LayerNormCase> all;
  for (const auto& [rows, d] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {2, 3}, {1, 48}, {3, 97}, {5, 33}, {7, 64}})
    for (const DType x : kDTypes)
      for (const DType y : kDTypes)
        for (const DType dx : kDTypes) all.push_back({rows, d, x, y, dx});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Shapes, LayerNorm, testing::ValuesIn(layer_norm_cases()));

// mean(x²) - mean² would have lost all digits of the variance here.
TEST(LayerNormRange, AMeanFarFromZero) {
  const std::int64_t d = 768;
  Matrix x = Matrix::random("x", DType::f32, 3, d, 0, 0.25);
  for (std::int64_t r = 0; r < 3; ++r)
    for (std::int64_t i = 0; i < d; ++i) x.set(r, i, x.at(r, i) + (r == 0 ? 1000 : -4000));
  Matrix weight(DType::f32, 1, d), bias(DType::f32, 1, d);
  std::vector<double> inputs = x.values();
  for (const float value : {1.0F, 0.0F}) {
    std::ranges::fill(floats(value == 1.0F ? weight : bias), value);
    inputs.insert(inputs.end(), static_cast<std::size_t>(d), static_cast<double>(value));
  }
  const auto expected = layer_norm(inputs, 3, d);
  on_every_target_and_thread_count([&](ThreadPool& pool) {
    Matrix y(DType::f32, 3, d), mean(DType::f32, 1, 3), inverse(DType::f32, 1, 3);
    layer_norm_forward(pool, x.view(), floats(weight), floats(bias),
                       static_cast<float>(kLayerNormEpsilon), y.view(), floats(mean),
                       floats(inverse));
    EXPECT_LT(relative_error(y.values(), expected), 4e-3);  // the rounding of the mean itself
    return std::vector<Matrix>{y};
  });
}

// Many tasks, whose sums are added up.
TEST(LayerNormTree, GradientsOfManyRows) {
  const std::int64_t rows = 3000;
  const std::int64_t d = 50;
  const Matrix x = Matrix::random("x", DType::f32, rows, d);
  const Matrix dy = Matrix::random("dy", DType::f32, rows, d);
  const Matrix weight = Matrix::random("weight", DType::f32, 1, d);
  std::vector<double> plain = x.values();
  plain.insert(plain.end(), static_cast<std::size_t>(d), 1.0);
  plain.insert(plain.end(), static_cast<std::size_t>(d), 0.0);
  const auto normal = layer_norm(plain, rows, d);
  std::vector<double> expected_dweight(static_cast<std::size_t>(d)),
      expected_dbias(static_cast<std::size_t>(d));
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < d; ++i) {
      const auto at = static_cast<std::size_t>(i);
      expected_dweight[at] += dy.at(r, i) * normal[static_cast<std::size_t>(r * d + i)];
      expected_dbias[at] += dy.at(r, i);
    }
  on_every_target_and_thread_count([&](ThreadPool& pool) {
    Matrix y(DType::f32, rows, d), dx(DType::f32, rows, d);
    Matrix mean(DType::f32, 1, rows), inverse(DType::f32, 1, rows);
    Matrix dweight(DType::f32, 1, d), dbias(DType::f32, 1, d);
    std::ranges::fill(floats(dweight), 0.0F);
    std::ranges::fill(floats(dbias), 0.0F);
    std::vector<float> scratch(layer_norm_scratch_floats(rows, d));
    layer_norm_forward(pool, x.view(), floats(weight), floats(weight),
                       static_cast<float>(kLayerNormEpsilon), y.view(), floats(mean),
                       floats(inverse));
    layer_norm_backward(pool, dy.view(), x.view(), floats(weight), floats(mean), floats(inverse),
                        dx.view(), false, floats(dweight), floats(dbias), scratch);
    EXPECT_LT(relative_error(dweight.values(), expected_dweight), 4 * tolerance(DType::f32));
    EXPECT_LT(relative_error(dbias.values(), expected_dbias), 4 * tolerance(DType::f32));
    return std::vector<Matrix>{dweight, dbias};
  });
}

}  // namespace
}  // namespace isthmus::kernels

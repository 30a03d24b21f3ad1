#include "kernels/norm_rope.h"

#include "kernels/rope.h"
#include "reference.h"

namespace isthmus::kernels {
namespace {

constexpr double kNormRopeEpsilon = 1e-5;

struct NormRopeCase {
  std::int64_t rows, heads, d, sequence;
  DType dtype;
};

class NormRope : public testing::TestWithParam<NormRopeCase> {};

// x [rows * heads * d], weight [d], one after the other in `inputs`.
std::vector<double> norm_rope(const std::vector<double>& inputs, const NormRopeCase& c,
                              const std::vector<double>& frequencies) {
  std::vector<double> y;
  const auto half = static_cast<std::size_t>(c.d / 2), d = 2 * half;
  const auto* weight = inputs.data() + c.rows * c.heads * c.d;
  for (std::int64_t r = 0; r < c.rows; ++r)
    for (std::int64_t h = 0; h < c.heads; ++h) {
      const double* x = inputs.data() + (r * c.heads + h) * c.d;
      double sum = 0;
      for (std::size_t i = 0; i < d; ++i) sum += x[i] * x[i];
      const double inverse = 1 / std::sqrt(sum / static_cast<double>(d) + kNormRopeEpsilon);
      for (std::size_t i = 0; i < d; ++i) {
        const double angle = static_cast<double>(r % c.sequence) * frequencies[i % half];
        const auto other = i < half ? i + half : i - half;
        const double sign = i < half ? -1 : 1;
        y.push_back(inverse * (x[i] * weight[i] * std::cos(angle) +
                               sign * x[other] * weight[other] * std::sin(angle)));
      }
    }
  return y;
}

TEST_P(NormRope, AgreesWithDouble) {
  const auto& c = GetParam();
  const auto columns = c.heads * c.d;
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < c.d / 2; ++i)
    frequencies.push_back(
        std::pow(100.0, -2.0 * static_cast<double>(i) / static_cast<double>(c.d)));
  std::vector<float> table(static_cast<std::size_t>(c.sequence * c.d));
  rope_table(frequencies, 1, c.sequence, table);
  const Matrix x = Matrix::random("x", c.dtype, c.rows, columns, 3);
  const Matrix weight = Matrix::random("weight", DType::f32, 1, c.d);
  const Matrix dy = Matrix::random("dy", c.dtype, c.rows, columns, 5);
  std::vector<double> inputs = x.values();
  for (const double w : weight.values()) inputs.push_back(w);
  const auto f = [&](const std::vector<double>& in) { return norm_rope(in, c, frequencies); };
  const auto expected = f(inputs);
  const auto gradient = numeric_gradient(inputs, dy.values(), f);
  const auto size = static_cast<std::ptrdiff_t>(c.rows * columns);
  const std::vector<double> dx_expected(gradient.begin(), gradient.begin() + size);
  const std::vector<double> dweight_expected(gradient.begin() + size, gradient.end());

  on_every_target_and_thread_count([&](ThreadPool& pool) {
    Matrix y(c.dtype, c.rows, columns, 1);
    Matrix inverse(DType::f32, 1, c.rows * c.heads);
    norm_rope_forward(pool, x.view(), floats(weight), static_cast<float>(kNormRopeEpsilon),
                      c.sequence, table, y.view(), floats(inverse));
    EXPECT_LT(relative_error(y.values(), expected), tolerance(c.dtype));
    Matrix in_place = x;
    norm_rope_forward(pool, in_place.view(), floats(weight), static_cast<float>(kNormRopeEpsilon),
                      c.sequence, table, in_place.view(), floats(inverse));
    EXPECT_EQ(in_place.values(), y.values());

    std::vector<float> scratch(norm_rope_scratch_floats(c.rows, columns, c.d));
    Matrix dx = dy;  // over dy
    Matrix dweight = Matrix::random("dweight", DType::f32, 1, c.d);
    const std::vector<double> before = dweight.values();
    norm_rope_backward(pool, dx.view(), x.view(), floats(weight), floats(inverse), c.sequence,
                       table, dx.view(), floats(dweight), scratch);
    EXPECT_LT(relative_error(dx.values(), dx_expected), 4 * tolerance(c.dtype));
    std::vector<double> added = dweight.values();
    for (std::size_t i = 0; i < added.size(); ++i) added[i] -= before[i];
    EXPECT_LT(relative_error(added, dweight_expected), 4 * tolerance(DType::f32));
    Matrix without(c.dtype, c.rows, columns, 2);
    norm_rope_backward(pool, dy.view(), x.view(), floats(weight), floats(inverse), c.sequence,
                       table, without.view(), {}, {});
    EXPECT_EQ(without.values(), dx.values());
    EXPECT_TRUE(y.padding_is_untouched() && dx.padding_is_untouched() &&
                without.padding_is_untouched());
    return std::vector<Matrix>{y, inverse, dx, dweight};
  });
}

std::vector<NormRopeCase> norm_rope_cases() {
  std::vector<NormRopeCase> all;
  for (const auto dtype : kDTypes)
    for (const auto& [rows, heads, d, sequence] : std::vector<std::array<std::int64_t, 4>>{
             {6, 1, 2, 3}, {4, 3, 6, 4}, {3, 5, 16, 2}, {5, 2, 26, 5}, {2, 1, 128, 2}})
      all.push_back({rows, heads, d, sequence, dtype});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Shapes, NormRope, testing::ValuesIn(norm_rope_cases()));

// Many tasks, so that dweight is summed over a tree. At position 0 nothing turns.
TEST(NormRopeTree, WeightGradientOfManyRows) {
  const std::int64_t rows = 3000, d = 50;
  const Matrix x = Matrix::random("x", DType::f32, rows, d);
  const Matrix dy = Matrix::random("dy", DType::f32, rows, d);
  const Matrix weight = Matrix::random("weight", DType::f32, 1, d);
  std::vector<float> table(static_cast<std::size_t>(d));
  rope_table(std::vector<double>(static_cast<std::size_t>(d / 2), 1.0), 1, 1, table);
  const auto expected = norm_weight_gradient(x, dy, kNormRopeEpsilon);
  on_every_target_and_thread_count([&](ThreadPool& pool) {
    Matrix y(DType::f32, rows, d);
    Matrix inverse(DType::f32, 1, rows);
    Matrix dx(DType::f32, rows, d);
    Matrix dweight(DType::f32, 1, d);
    for (float& value : floats(dweight)) value = 0;
    std::vector<float> scratch(norm_rope_scratch_floats(rows, d, d));
    norm_rope_forward(pool, x.view(), floats(weight), static_cast<float>(kNormRopeEpsilon), 1,
                      table, y.view(), floats(inverse));
    norm_rope_backward(pool, dy.view(), x.view(), floats(weight), floats(inverse), 1, table,
                       dx.view(), floats(dweight), scratch);
    EXPECT_LT(relative_error(dweight.values(), expected), 4 * tolerance(DType::f32));
    return std::vector<Matrix>{dweight};
  });
}

}  // namespace
}  // namespace isthmus::kernels

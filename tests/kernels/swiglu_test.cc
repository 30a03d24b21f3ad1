#include "kernels/swiglu.h"

#include "reference.h"

namespace isthmus::kernels {
namespace {

// gate then up in `inputs`.
std::vector<double> glu(const std::vector<double>& inputs) {
  std::vector<double> out;
  const std::size_t n = inputs.size() / 2;
  for (std::size_t i = 0; i < n; ++i)
    out.push_back(inputs[i] / (1 + std::exp(-inputs[i])) * inputs[n + i]);
  return out;
}

// Derivatives element by element: numeric_gradient would be quadratic.
std::vector<double> glu_gradient(const std::vector<double>& inputs, const std::vector<double>& d) {
  constexpr double kStep = 1e-5;
  std::vector<double> gradient(inputs.size());
  const std::size_t n = inputs.size() / 2;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::size_t element = i % n;
    const auto at = [&](double shift) {
      const double gate = inputs[element] + (i < n ? shift : 0);
      const double up = inputs[n + element] + (i < n ? 0 : shift);
      return glu({gate, up})[0];
    };
    gradient[i] = d[element] * (at(kStep) - at(-kStep)) / (2 * kStep);
  }
  return gradient;
}

TEST(Swiglu, AgreesWithDouble) {
  for (const std::int64_t width : {1, 33, 97, 704})
    for (const DType dtype : kDTypes)
      for (const DType gradient_type : kDTypes) {
        const std::int64_t rows = 9;
        const Matrix gate = Matrix::random("gate", dtype, rows, width, 3, 3.0);
        const Matrix up = Matrix::random("up", dtype, rows, width, 1);
        const Matrix dout = Matrix::random("dout", gradient_type, rows, width, 2);
        std::vector<double> inputs = gate.values();
        for (const double value : up.values()) inputs.push_back(value);
        const auto gradient = glu_gradient(inputs, dout.values());
        const auto n = static_cast<std::ptrdiff_t>(rows * width);
        on_every_target_and_thread_count([&](ThreadPool& pool) {
          Matrix out(dtype, rows, width, 4);
          swiglu_forward(pool, gate.view(), up.view(), out.view());
          EXPECT_LT(relative_error(out.values(), glu(inputs)), tolerance(dtype));
          Matrix dgate(dtype, rows, width, 4);
          Matrix dup(dtype, rows, width, 4);
          swiglu_backward(pool, dout.view(), gate.view(), up.view(), dgate.view(), dup.view());
          EXPECT_LT(relative_error(dgate.values(), {gradient.begin(), gradient.begin() + n}),
                    2 * tolerance(dtype));
          EXPECT_LT(relative_error(dup.values(), {gradient.begin() + n, gradient.end()}),
                    2 * tolerance(dtype));
          // In place.
          Matrix gate_copy = gate;
          Matrix up_copy = up;
          Matrix again(dtype, rows, width, 2);
          const Rows out_again = again.view();
          swiglu_backward(pool, dout.view(), gate_copy.view(), up_copy.view(), gate_copy.view(),
                          up_copy.view(), &out_again);
          EXPECT_EQ(again.values(), out.values());
          EXPECT_TRUE(again.padding_is_untouched());
          EXPECT_EQ(gate_copy.values(), dgate.values());
          EXPECT_EQ(up_copy.values(), dup.values());
          EXPECT_TRUE(dgate.padding_is_untouched() && dup.padding_is_untouched());
          return std::vector<Matrix>{out, dgate, dup};
        });
      }
}

TEST(Swiglu, WithAWeightPerRowAgreesWithDouble) {
  for (const std::int64_t width : {1, 33, 704})
    for (const DType dtype : kDTypes)
      for (const DType gradient_type : kDTypes) {
        const std::int64_t rows = 9;
        const Matrix gate = Matrix::random("gate", dtype, rows, width, 3, 3.0);
        const Matrix up = Matrix::random("up", dtype, rows, width, 1);
        const Matrix dout = Matrix::random("dout", gradient_type, rows, width, 2);
        std::vector<float> weights;
        for (std::int64_t r = 0; r < rows; ++r)
          weights.push_back(0.125F * static_cast<float>(r));  // one is 0
        std::vector<double> inputs = gate.values();
        for (const double value : up.values()) inputs.push_back(value);
        const auto products = glu(inputs);
        std::vector<double> expected, weighted_dout, expected_dweights;
        for (std::int64_t r = 0; r < rows; ++r) {
          double sum = 0;
          for (std::int64_t c = 0; c < width; ++c) {
            const auto product = products[static_cast<std::size_t>(r * width + c)];
            const auto weight = static_cast<double>(weights[static_cast<std::size_t>(r)]);
            expected.push_back(weight * product);
            weighted_dout.push_back(weight * dout.at(r, c));
            sum += dout.at(r, c) * product;
          }
          expected_dweights.push_back(sum);
        }
        const auto gradient = glu_gradient(inputs, weighted_dout);
        const auto n = static_cast<std::ptrdiff_t>(rows * width);
        on_every_target_and_thread_count([&](ThreadPool& pool) {
          Matrix out(dtype, rows, width, 4), again(dtype, rows, width, 2);
          Matrix dgate(dtype, rows, width, 4), dup(dtype, rows, width, 4);
          Matrix dweights(DType::f32, 1, rows);
          const Rows out_again = again.view();
          weighted_swiglu_forward(pool, gate.view(), up.view(), weights, out.view());
          weighted_swiglu_backward(
              pool, dout.view(), gate.view(), up.view(), weights, dgate.view(), dup.view(),
              {static_cast<float*>(dweights.data()), static_cast<std::size_t>(rows)}, &out_again);
          EXPECT_LT(relative_error(out.values(), expected), tolerance(dtype));
          EXPECT_EQ(again.values(), out.values());
          EXPECT_LT(relative_error(dgate.values(), {gradient.begin(), gradient.begin() + n}),
                    2 * tolerance(dtype));
          EXPECT_LT(relative_error(dup.values(), {gradient.begin() + n, gradient.end()}),
                    2 * tolerance(dtype));
          EXPECT_LT(relative_error(dweights.values(), expected_dweights), tolerance(DType::f32));
          EXPECT_TRUE(again.padding_is_untouched() && dgate.padding_is_untouched() &&
                      dup.padding_is_untouched());
          return std::vector<Matrix>{out, dgate, dup, dweights};
        });
      }
}

TEST(Swiglu, ExtremeGates) {
  on_every_target_and_thread_count([](ThreadPool& pool) {
    Matrix gate(DType::f32, 1, 6);
    Matrix up(DType::f32, 1, 6);
    const double gates[] = {-3e38, -1000, -90, 90, 1000, 3e38};
    for (int i = 0; i < 6; ++i) {
      gate.set(0, i, gates[i]);
      up.set(0, i, 1);
    }
    Matrix out(DType::f32, 1, 6);
    swiglu_forward(pool, gate.view(), up.view(), out.view());
    for (int i = 0; i < 3; ++i) EXPECT_NEAR(out.at(0, i), 0.0, 0.01);
    for (int i = 3; i < 6; ++i) EXPECT_NEAR(out.at(0, i) / gates[i], 1.0, 1e-6);
    return std::vector<Matrix>{out};
  });
}

TEST(Swiglu, NaNStays) {
  on_every_target_and_thread_count([](ThreadPool& pool) {
    Matrix gate(DType::f32, 1, 21), up(DType::f32, 1, 21), out(DType::f32, 1, 21);
    for (std::int64_t i = 0; i < 21; ++i) {
      gate.set(0, i, i % 2 == 0 ? NAN : 1.0);
      up.set(0, i, 1);
    }
    swiglu_forward(pool, gate.view(), up.view(), out.view());
    for (std::int64_t i = 0; i < 21; ++i) EXPECT_EQ(std::isnan(out.at(0, i)), i % 2 == 0) << i;
    return std::vector<Matrix>{};
  });
}

}  // namespace
}  // namespace isthmus::kernels

#include "kernels/rope.h"

#include "reference.h"

namespace isthmus::kernels {
namespace {

constexpr double kAmplitude = 1.25;

std::vector<double> frequencies(double theta, std::int64_t head_dim) {
  std::vector<double> all;
  for (std::int64_t i = 0; i < head_dim / 2; ++i)
    all.push_back(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim)));
  return all;
}

// Hugging Face: x * cos + rotate_half(x) * sin.
std::vector<double> rotated(const Matrix& x, std::int64_t head_dim, double theta,
                            const std::vector<std::int32_t>& positions, double sign) {
  std::vector<double> out;
  const auto turns = frequencies(theta, head_dim);
  const std::int64_t half = head_dim / 2;
  for (std::int64_t r = 0; r < x.rows(); ++r)
    for (std::int64_t c = 0; c < x.columns(); ++c) {
      const std::int64_t i = c % head_dim;
      const double angle =
          sign * positions[static_cast<std::size_t>(r)] * turns[static_cast<std::size_t>(i % half)];
      const double other = i < half ? -x.at(r, c + half) : x.at(r, c - half);
      out.push_back(kAmplitude * (x.at(r, c) * std::cos(angle) + other * std::sin(angle)));
    }
  return out;
}

TEST(Rope, AgreesWithDouble) {
  for (const std::int64_t head_dim : {2, 6, 48, 64, 80})
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(head_dim);
      const std::int64_t sequence = 7;
      const std::int64_t rows = 3 * sequence;
      const double theta = 500000.0;
      const Matrix x = Matrix::random("x", dtype, rows, 3 * head_dim, 5);
      std::vector<float> table(static_cast<std::size_t>(40 * head_dim));
      rope_table(frequencies(theta, head_dim), kAmplitude, 40, table);
      std::vector<std::int32_t> given;
      std::vector<std::int32_t> counted;
      for (std::int64_t r = 0; r < rows; ++r) {
        counted.push_back(static_cast<std::int32_t>(r % sequence));
        given.push_back(static_cast<std::int32_t>((r * 11) % 40));
      }
      on_every_target_and_thread_count([&](ThreadPool& pool) {
        Matrix forward = x;
        rope(pool, forward.view(), head_dim, {}, sequence, table, RopeDirection::forward);
        EXPECT_LT(relative_error(forward.values(), rotated(x, head_dim, theta, counted, 1)),
                  tolerance(dtype));
        Matrix at_given = x;
        rope(pool, at_given.view(), head_dim, given, 0, table, RopeDirection::forward);
        EXPECT_LT(relative_error(at_given.values(), rotated(x, head_dim, theta, given, 1)),
                  tolerance(dtype));
        // A rotation's gradient is the rotation back, by the same amplitude.
        Matrix backward = x;
        rope(pool, backward.view(), head_dim, {}, sequence, table, RopeDirection::backward);
        EXPECT_LT(relative_error(backward.values(), rotated(x, head_dim, theta, counted, -1)),
                  tolerance(dtype));
        EXPECT_TRUE(forward.padding_is_untouched());
        return std::vector<Matrix>{forward, at_given, backward};
      });
    }
}

}  // namespace
}  // namespace isthmus::kernels

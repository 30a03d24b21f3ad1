#include "kernels/dropout.h"

#include "dropout_reference.h"
#include "reference.h"

namespace isthmus::kernels {
namespace {

// Halves with the sign bit too.
const std::vector<std::int32_t> kDropoutKeys = {7, -3, -2000000000, 12345, 0, 0};

TEST(Dropout, IsTheMaskOfPhiloxBitForBit) {
  const std::int64_t sequence = 3;
  const std::int64_t rows = 3 * sequence;
  for (const std::int64_t columns : {1, 63, 64, 77, 200})
    for (const float rate : {0.1F, 0.5F, 0.999F}) {
      const DropoutMask mask{.rate = rate, .stream = 0x80000005, .keys = kDropoutKeys};
      for (const DType x_type : kDTypes)
        for (const DType y_type : kDTypes) {
          const Matrix x = Matrix::random("x", x_type, rows, columns, 3);
          Matrix expected(y_type, rows, columns, 1);
          for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t c = 0; c < columns; ++c) {
              const double factor = dropout_factor(mask, r / sequence, r % sequence, c);
              // One rounding to f32, of a product of two f32.
              expected.set(r, c, x.at(r, c) * static_cast<double>(static_cast<float>(factor)));
            }
          on_every_target_and_thread_count([&](ThreadPool& pool) {
            Matrix y(y_type, rows, columns, 1);
            dropout(pool, x.view(), sequence, mask, y.view());
            EXPECT_TRUE(y.same_bits(expected)) << columns << " columns, rate " << rate;
            if (x_type == y_type) {
              Matrix in_place = x;
              dropout(pool, in_place.view(), sequence, mask, in_place.view());
              EXPECT_EQ(in_place.values(), y.values());
            }
            return std::vector<Matrix>{y};
          });
        }
    }
}

// Of a sequence of many rows, cut into several tasks, as of each sequence alone.
TEST(Dropout, DependsOnNoOtherSequence) {
  const std::int64_t sequence = 150;
  const std::int64_t columns = 300;
  const DropoutMask mask{.rate = 0.3F, .stream = 2, .keys = kDropoutKeys};
  const Matrix x = Matrix::random("x", DType::f32, 3 * sequence, columns);
  on_every_target_and_thread_count([&](ThreadPool& pool) {
    Matrix y(DType::f32, 3 * sequence, columns), alone(DType::f32, 3 * sequence, columns);
    dropout(pool, x.view(), sequence, mask, y.view());
    for (std::int64_t b = 2; b >= 0; --b) {
      DropoutMask one = mask;
      one.keys = mask.keys.subspan(static_cast<std::size_t>(2 * b), 2);
      dropout(pool, x.view().row_range(b * sequence, sequence), sequence, one,
              alone.view().row_range(b * sequence, sequence));
    }
    EXPECT_TRUE(y.same_bits(alone));
    return std::vector<Matrix>{y};
  });
}

// The share kept, over all and by row, column, and pairs of neighbours: five deviations at most.
TEST(Dropout, KeepsItsShareIndependently) {
  const std::int64_t rows = 400;
  const std::int64_t columns = 512;
  Matrix ones(DType::f32, rows, columns);
  std::ranges::fill(floats(ones), 1.0F);
  ThreadPool pool(unpinned(1));
  for (const float rate : {0.1F, 0.5F}) {
    const auto kept = [&](std::uint32_t stream, std::size_t sequence) {
      Matrix y(DType::f32, rows, columns);
      const DropoutMask mask{
          .rate = rate, .stream = stream, .keys = std::span(kDropoutKeys).subspan(2 * sequence, 2)};
      dropout(pool, ones.view(), rows, mask, y.view());
      return y;
    };
    const Matrix y = kept(1, 0);
    const auto p = 1 - static_cast<double>(rate);
    const auto expect_share = [&](auto is_kept, std::int64_t n, double share) {
      double count = 0;
      for (std::int64_t i = 0; i < n; ++i) count += is_kept(i) ? 1 : 0;
      const auto all = static_cast<double>(n);
      EXPECT_NEAR(count / all, share, 5 * std::sqrt(share * (1 - share) / all));
    };
    const std::int64_t n = rows * columns;
    const auto at = [&](const Matrix& of, std::int64_t i) {
      return of.at(i / columns, i % columns) > 0;
    };
    expect_share([&](std::int64_t i) { return at(y, i); }, n, p);
    for (const std::int64_t step : {1, 16, 64, 512})
      expect_share([&](std::int64_t i) { return at(y, i) && at(y, i + step); }, n - step, p * p);
    for (const Matrix& other : {kept(2, 0), kept(1, 1)})
      expect_share([&](std::int64_t i) { return at(y, i) && at(other, i); }, n, p * p);
    for (std::int64_t line = 0; line < rows; line += 37) {
      expect_share([&](std::int64_t i) { return y.at(line, i) > 0; }, columns, p);
      expect_share([&](std::int64_t i) { return y.at(i, line) > 0; }, rows, p);
    }
  }
}

TEST(Dropout, OfRateZeroCopiesAndNeedsNoKeys) {
  const Matrix x = Matrix::random("x", DType::f32, 4, 70);
  on_every_target_and_thread_count([&](ThreadPool& pool) {
    Matrix y(DType::f32, 4, 70);
    dropout(pool, x.view(), 2, {}, y.view());
    EXPECT_TRUE(y.same_bits(x));
    return std::vector<Matrix>{y};
  });
}

}  // namespace
}  // namespace isthmus::kernels

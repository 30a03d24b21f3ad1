#include "kernels/repeated_rows.h"

#include "reference.h"

namespace isthmus::kernels {
namespace {

struct RepeatedRowsCase {
  std::int64_t rows, columns, table_rows;
};

// A bias of few and of many tasks, positions of several sequences, a table longer than the rows,
// and one that does not divide them.
const std::vector<RepeatedRowsCase> kRepeatedRowsCases = {
    {5, 33, 1}, {1, 1, 1}, {3001, 50, 1}, {24, 97, 8}, {700, 130, 350}, {3, 7, 5}, {11, 64, 4}};

TEST(RepeatedRows, AddAgreesWithDouble) {
  for (const auto& [rows, columns, table_rows] : kRepeatedRowsCases)
    for (const DType x_type : kDTypes)
      for (const DType table_type : kDTypes)
        for (const DType y_type : kDTypes) {
          const Matrix x = Matrix::random("x", x_type, rows, columns, 3);
          const Matrix table = Matrix::random("table", table_type, table_rows, columns, 1);
          std::vector<double> expected;
          for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t c = 0; c < columns; ++c)
              expected.push_back(x.at(r, c) + table.at(r % table_rows, c));
          on_every_target_and_thread_count([&](ThreadPool& pool) {
            Matrix y(y_type, rows, columns, 2);
            add_repeated_rows(pool, x.view(), table.view(), y.view());
            EXPECT_LT(relative_error(y.values(), expected), 1.6 * tolerance(y_type));
            EXPECT_TRUE(y.padding_is_untouched());
            if (x_type == y_type) {
              Matrix in_place = x;
              add_repeated_rows(pool, in_place.view(), table.view(), in_place.view());
              EXPECT_EQ(in_place.values(), y.values());
            }
            return std::vector<Matrix>{y};
          });
        }
}

TEST(RepeatedRows, SumAgreesWithDouble) {
  for (const auto& [rows, columns, table_rows] : kRepeatedRowsCases)
    for (const DType dtype : kDTypes) {
      const Matrix dy = Matrix::random("dy", dtype, rows, columns, 3);
      const Matrix before = Matrix::random("before", DType::f32, table_rows, columns, 2);
      std::vector<double> expected = before.values();
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c)
          expected[static_cast<std::size_t>(r % table_rows * columns + c)] += dy.at(r, c);
      on_every_target_and_thread_count([&](ThreadPool& pool) {
        Matrix sum = before;
        std::vector<float> scratch(repeated_rows_scratch_floats(rows, columns, table_rows), 7.0F);
        EXPECT_EQ(scratch.empty(), table_rows > 1);
        sum_repeated_rows(pool, dy.view(), sum.view(), scratch);
        EXPECT_LT(relative_error(sum.values(), expected), tolerance(DType::f32));
        EXPECT_TRUE(sum.padding_is_untouched());
        return std::vector<Matrix>{sum};
      });
    }
}

}  // namespace
}  // namespace isthmus::kernels

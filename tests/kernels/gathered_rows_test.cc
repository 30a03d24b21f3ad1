#include "kernels/gathered_rows.h"

#include "reference.h"

namespace isthmus::kernels {
namespace {

TEST(GatheredRows, AreRowsByNumberAndSummedBack) {
  const std::vector<std::int32_t> row_tokens = {2, 0, 1, 1, 2, 0};
  const std::vector<std::int32_t> rows = {1, kNoRow, 3, kNoRow, 4, 0};  // of three tokens
  for (const std::int64_t columns : {1, 37})
    for (const DType from : kDTypes)
      for (const DType to : kDTypes) {
        const auto x = Matrix::random("x", from, 3, columns, 2);
        const auto y = Matrix::random("y", from, 6, columns, 1);
        const auto before = Matrix::random("before", to, 3, columns, 3);
        on_every_target_and_thread_count([&](ThreadPool& pool) {
          Matrix gathered(to, 7, columns, 2);
          gather_rows(pool, x.view(), row_tokens, gathered.view());
          for (std::int64_t c = 0; c < columns; ++c) {
            for (std::size_t r = 0; r < row_tokens.size(); ++r) {
              const auto row = static_cast<std::int64_t>(r);
              const auto expected = x.at(row_tokens[r], c);
              EXPECT_NEAR(gathered.at(row, c), expected, tolerance(to) * 2 * std::abs(expected));
            }
            EXPECT_EQ(gathered.at(6, c), Matrix(to, 1, 1).at(0, 0)) << "not asked for";
          }
          Matrix sum(to, 3, columns, 2);
          sum_gathered_rows(pool, y.view(), rows, false, sum.view());
          Matrix added = before;
          sum_gathered_rows(pool, y.view(), rows, true, added.view());
          std::vector<double> expected, expected_added;
          for (std::int64_t t = 0; t < 3; ++t)
            for (std::int64_t c = 0; c < columns; ++c) {
              double of_rows = 0;
              for (const auto row : {rows[static_cast<std::size_t>(2 * t)],
                                     rows[static_cast<std::size_t>(2 * t + 1)]})
                if (row != kNoRow) of_rows += y.at(row, c);
              expected.push_back(of_rows);
              expected_added.push_back(before.at(t, c) + of_rows);
            }
          EXPECT_LT(relative_error(sum.values(), expected), tolerance(to));
          EXPECT_LT(relative_error(added.values(), expected_added), tolerance(to));
          EXPECT_TRUE(gathered.padding_is_untouched() && sum.padding_is_untouched());
          return std::vector<Matrix>{gathered, sum, added};
        });
      }
}

}  // namespace
}  // namespace isthmus::kernels

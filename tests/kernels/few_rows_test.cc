#include "kernels/few_rows.h"

#include "reference.h"

namespace isthmus::kernels {
namespace {

struct FewRowsCase {
  std::int64_t in, out;
  DType dtype, y;
};

class FewRows : public testing::TestWithParam<FewRowsCase> {};

TEST_P(FewRows, AgreesWithDoubleAndEachRowIsWhatItIsAlone) {
  const auto [in, out, dtype, y_type] = GetParam();
  const Matrix x = Matrix::random("x", dtype, kFewRows, in, 3);
  const Matrix weight = Matrix::random("weight", dtype, out, in, 1);
  for (std::int64_t rows = 1; rows <= kFewRows; ++rows) {
    std::vector<double> expected;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t o = 0; o < out; ++o) {
        double sum = 0;
        for (std::int64_t i = 0; i < in; ++i) sum += x.at(r, i) * weight.at(o, i);
        expected.push_back(sum);
      }
    on_every_target_and_thread_count([&, out = out, y_type = y_type](ThreadPool& pool) {
      Matrix y(y_type, rows, out, 2);
      few_rows_product(pool, x.view().row_range(0, rows), weight.view(), y.view());
      EXPECT_LT(relative_error(y.values(), expected), tolerance(y_type));
      EXPECT_TRUE(y.padding_is_untouched());
      for (std::int64_t r = 0; r < rows; ++r) {
        Matrix alone(y_type, 1, out);
        few_rows_product(pool, x.view().row_range(r, 1), weight.view(), alone.view());
        for (std::int64_t o = 0; o < out; ++o) EXPECT_EQ(alone.at(0, o), y.at(r, o));
      }
      return std::vector<Matrix>{y};
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, FewRows,
                         testing::Values(FewRowsCase{1, 1, DType::f32, DType::f32},
                                         FewRowsCase{77, 19, DType::f32, DType::f32},
                                         FewRowsCase{64, 1003, DType::f32, DType::f32},
                                         FewRowsCase{385, 130, DType::bf16, DType::bf16},
                                         FewRowsCase{33, 15, DType::bf16, DType::f32}));

}  // namespace
}  // namespace isthmus::kernels

#include "kernels/low_rank.h"

#include "reference.h"

namespace isthmus::kernels {
namespace {

struct LowRankCase {
  std::int64_t rows, rank, out;
  DType dtype, y;
};

class LowRank : public testing::TestWithParam<LowRankCase> {
 protected:
  static constexpr float kScale = 0.75F;
};

TEST_P(LowRank, AddsTheProduct) {
  const auto [rows, rank, out, dtype, y_type] = GetParam();
  const Matrix t = Matrix::random("t", dtype, rows, rank, 1);
  const Matrix b = Matrix::random("b", dtype, out, rank, 3);
  const Matrix y = Matrix::random("y", y_type, rows, out, 2);
  std::vector<double> expected;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t o = 0; o < out; ++o) {
      double sum = 0;
      for (std::int64_t i = 0; i < rank; ++i) sum += t.at(r, i) * b.at(o, i);
      expected.push_back(y.at(r, o) + kScale * sum);
    }
  on_every_target_and_thread_count([&, rank = rank, out = out](ThreadPool& pool) {
    std::vector<float> scratch(low_rank_scratch_floats(out, rank));
    Matrix apart(y.dtype(), y.rows(), y.columns(), 2);
    low_rank_forward(pool, t.view(), b.view(), kScale, y.view(), apart.view(), scratch);
    EXPECT_LT(relative_error(apart.values(), expected), tolerance(y.dtype()));
    EXPECT_TRUE(apart.padding_is_untouched());
    const Matrix in_place = y;
    low_rank_forward(pool, t.view(), b.view(), kScale, in_place.view(), in_place.view(), scratch);
    EXPECT_EQ(in_place.values(), apart.values());
    return std::vector<Matrix>{apart};
  });
}

TEST_P(LowRank, GivesBothGradients) {
  const auto [rows, rank, out, dtype, y_type] = GetParam();
  const Matrix t = Matrix::random("t", dtype, rows, rank, 1);
  const Matrix b = Matrix::random("b", dtype, out, rank, 3);
  const Matrix dy = Matrix::random("dy", dtype, rows, out, 2);
  const Matrix before = Matrix::random("before", DType::f32, out, rank, 1);
  std::vector<double> dt(static_cast<std::size_t>(rows * rank));
  std::vector<double> db(static_cast<std::size_t>(out * rank));
  auto summed = before.values();
  for (std::int64_t i = 0; i < rank; ++i)
    for (std::int64_t o = 0; o < out; ++o)
      for (std::int64_t r = 0; r < rows; ++r) {
        const auto at = static_cast<std::size_t>(o * rank + i);
        dt[static_cast<std::size_t>(r * rank + i)] += kScale * dy.at(r, o) * b.at(o, i);
        db[at] += kScale * dy.at(r, o) * t.at(r, i);
        summed[at] += kScale * dy.at(r, o) * t.at(r, i);
      }
  on_every_target_and_thread_count(
      [&, rows = rows, rank = rank, out = out, dtype = dtype](ThreadPool& pool) {
        Matrix to_t(dtype, rows, rank, 1), set(DType::f32, out, rank, 2), added = before;
        low_rank_input_gradient(pool, dy.view(), b.view(), kScale, to_t.view());
        low_rank_weight_gradient(pool, dy.view(), t.view(), kScale, set.view(), false);
        low_rank_weight_gradient(pool, dy.view(), t.view(), kScale, added.view(), true);
        EXPECT_LT(relative_error(to_t.values(), dt), tolerance(dtype));
        EXPECT_LT(relative_error(set.values(), db), tolerance(DType::f32));
        EXPECT_LT(relative_error(added.values(), summed), tolerance(DType::f32));
        for (const auto* made : {&to_t, &set, &added}) EXPECT_TRUE(made->padding_is_untouched());
        return std::vector<Matrix>{to_t, set, added};
      });
}

INSTANTIATE_TEST_SUITE_P(Shapes, LowRank,
                         testing::Values(LowRankCase{1, 1, 1, DType::f32, DType::f32},
                                         LowRankCase{77, 8, 130, DType::f32, DType::f32},
                                         LowRankCase{131, 13, 67, DType::f32, DType::f32},
                                         LowRankCase{70, 16, 384, DType::bf16, DType::bf16},
                                         LowRankCase{66, 33, 41, DType::bf16, DType::f32}));

}  // namespace
}  // namespace isthmus::kernels

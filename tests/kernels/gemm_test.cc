#include "kernels/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/large_vector.h"
#include "reference.h"

namespace isthmus::kernels {
namespace {

struct ProductCase {
  GemmShape shape;
  bool native = true;
};

std::vector<double> reference(const GemmShape& s, const Matrix& a, const Matrix& b,
                              const Matrix& c) {
  const auto x = a.values();
  const auto y = b.values();
  const bool tn = s.form == GemmForm::tn;
  const bool nt = s.form == GemmForm::nt;
  std::vector<double> out;
  for (std::int64_t i = 0; i < s.m; ++i)
    for (std::int64_t j = 0; j < s.n; ++j)
      out.push_back(sum_of_products(s.accumulate ? c.at(i, j) : 0.0, s.k,
                                    x.data() + (tn ? i : i * s.k), tn ? s.m : 1,
                                    y.data() + (nt ? j * s.k : j), nt ? 1 : s.n));
  return out;
}

class Gemm : public testing::TestWithParam<ProductCase> {};

TEST_P(Gemm, AgreesWithDoubleAndNotOnThreads) {
  const GemmShape s = GetParam().shape;
  const bool tn = s.form == GemmForm::tn;
  const bool nt = s.form == GemmForm::nt;
  const Matrix a = Matrix::random("a", s.input, tn ? s.k : s.m, tn ? s.m : s.k);
  const Matrix b = Matrix::random("b", s.input, nt ? s.n : s.k, nt ? s.k : s.n);
  const Matrix before = Matrix::random("c", s.output, s.m, s.n);
  const auto expected = reference(s, a, b, before);

  std::vector<Matrix> results;
  for (const std::size_t threads : {1, 2, 3, 5}) {
    ThreadPool pool(unpinned(threads));
    GemmScratch scratch(threads);
    const GemmPlan plan(s, scratch, GetParam().native);
    Matrix c = before;
    plan.run(pool, a.data(), b.data(), c.data());
    EXPECT_LT(relative_error(c.values(), expected), tolerance(s.output));
    results.push_back(c);
    EXPECT_TRUE(c.same_bits(results.front())) << threads << " threads";
  }
}

// One whose rows begin where cache lines do is written past the caches.
TEST(GemmGradient, IsTheSameWhereverItLies) {
  constexpr std::int64_t kRows = 70, kColumns = 96, kTokens = 130;
  for (const DType input : {DType::f32, DType::bf16}) {
    const Matrix a = Matrix::random("a", input, kTokens, kRows);
    const Matrix b = Matrix::random("b", input, kTokens, kColumns);
    ThreadPool pool(unpinned(2));
    GemmScratch scratch(2);
    const GemmPlan plan({GemmForm::tn, kRows, kColumns, kTokens, input}, scratch);
    LargeVector<float> aligned(kRows * kColumns), beside(kRows * kColumns + 1);
    plan.run(pool, a.data(), b.data(), aligned.data());
    plan.run(pool, a.data(), b.data(), beside.data() + 1);
    const Matrix none(DType::f32, kRows, kColumns);
    const auto expected = reference(plan.shape(), a, b, none);
    EXPECT_LT(relative_error({aligned.begin(), aligned.end()}, expected), tolerance(DType::f32));
    EXPECT_TRUE(std::ranges::equal(aligned, std::span(beside).subspan(1)));
  }
}

// What is multiplied in f32.
class GemmOnTargets : public Gemm {};

TEST_P(GemmOnTargets, AgreesWithDoubleAndOthers) {
  const GemmShape s = GetParam().shape;
  const bool tn = s.form == GemmForm::tn;
  const bool nt = s.form == GemmForm::nt;
  const Matrix a = Matrix::random("a", s.input, tn ? s.k : s.m, tn ? s.m : s.k);
  const Matrix b = Matrix::random("b", s.input, nt ? s.n : s.k, nt ? s.k : s.n);
  const Matrix before = Matrix::random("c", s.output, s.m, s.n);
  const auto expected = reference(s, a, b, before);
  std::vector<Matrix> fused;  // of targets that multiply and add without rounding between
  for (const VectorTarget& target : vector_targets()) {
    SCOPED_TRACE(target.name);
    const ForcedVectorTarget forced(target);
    ThreadPool pool(unpinned(2));
    GemmScratch scratch(2);
    const GemmPlan plan(s, scratch, false);
    Matrix c = before;
    plan.run(pool, a.data(), b.data(), c.data());
    EXPECT_LT(relative_error(c.values(), expected), tolerance(s.output));
    if (target.name.starts_with("AVX")) fused.push_back(c);
  }
  for (const auto& c : fused) EXPECT_TRUE(c.same_bits(fused.front()));
}

std::vector<ProductCase> product_cases() {
  std::vector<ProductCase> all;
  const std::int64_t sizes[][3] = {{1, 1, 1},      {1, 97, 48},     {7, 5, 3},      {33, 260, 80},
                                   {300, 97, 64},  {513, 200, 7},   {97, 1500, 33}, {130, 260, 513},
                                   {1024, 33, 70}, {64, 64, 16384}, {5, 35, 16411}, {90, 44, 41}};
  for (const auto& [m, n, k] : sizes)
    for (const GemmForm form : {GemmForm::nt, GemmForm::nn, GemmForm::tn}) {
      // A long k: the gradient of a weight from many tokens, and of the head's input.
      if (k > 1000 && m > 5 && form != GemmForm::tn) continue;
      for (const bool accumulate : {false, true}) {
        all.push_back({{form, m, n, k, DType::f32, DType::f32, accumulate}});
        for (const bool native : {false, true}) {
          if (native && __builtin_cpu_supports("avx512bf16") == 0) continue;
          all.push_back({{form, m, n, k, DType::bf16, DType::f32, accumulate}, native});
          if (!accumulate)
            all.push_back({{form, m, n, k, DType::bf16, DType::bf16, false}, native});
        }
      }
    }
  return all;
}

std::vector<ProductCase> f32_cases() {
  auto all = product_cases();
  std::erase_if(all, [](const auto& c) { return c.shape.input == DType::bf16 && c.native; });
  return all;
}

std::string name_of(const testing::TestParamInfo<ProductCase>& info) {
  const GemmShape& s = info.param.shape;
  const char* form = s.form == GemmForm::nt ? "nt" : s.form == GemmForm::nn ? "nn" : "tn";
  return fmt::format("{}_{}x{}x{}_{}_to_{}{}{}", form, s.m, s.n, s.k, to_string(s.input),
                     to_string(s.output), s.accumulate ? "_added" : "",
                     info.param.native ? "" : "_in_f32");
}

INSTANTIATE_TEST_SUITE_P(Shapes, Gemm, testing::ValuesIn(product_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Shapes, GemmOnTargets, testing::ValuesIn(f32_cases()), name_of);

}  // namespace
}  // namespace isthmus::kernels

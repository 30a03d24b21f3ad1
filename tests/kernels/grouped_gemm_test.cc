#include "kernels/grouped_gemm.h"

#include <fmt/format.h>

#include "reference.h"

namespace isthmus::kernels {
namespace {

struct GroupedCase {
  GroupedGemmShape shape;
  bool native = true;
};

// Row counts of groups: even, very uneven, and none at all.
const std::vector<std::vector<std::int32_t>> kGroupOffsets = {{0, 96, 192, 288, 384},
                                                              {0, 1, 1, 1006, 1009},
                                                              {0, 0, 0, 0, 13},
                                                              {0, 0, 0, 0, 0},
                                                              {0, 205, 736, 751, 1264}};
constexpr std::int64_t kGroupRowsMax = 1264;

class GroupedGemm : public testing::TestWithParam<GroupedCase> {
 protected:
  // Of each element of the result, by its definition.
  std::vector<double> reference(const Matrix& a, const Matrix& b, const Matrix& before,
                                const std::vector<std::int32_t>& offsets) const {
    const auto& s = GetParam().shape;
    const auto x = a.values();
    const auto y = b.values();
    auto out = before.values();
    const auto width = before.columns();
    for (std::size_t g = 0; g + 1 < offsets.size(); ++g) {
      const auto weight = static_cast<std::int64_t>(g) * s.out;  // its first row
      if (s.form == GemmForm::tn) {
        for (std::int64_t o = 0; o < s.out; ++o)
          for (std::int64_t i = 0; i < s.in; ++i) {
            auto& sum = out[static_cast<std::size_t>((weight + o) * width + i)];
            sum = sum_of_products(s.accumulate ? sum : 0, offsets[g + 1] - offsets[g],
                                  x.data() + offsets[g] * s.out + o, s.out,
                                  y.data() + offsets[g] * s.in + i, s.in);
          }
        continue;
      }
      for (std::int64_t r = offsets[g]; r < offsets[g + 1]; ++r)
        for (std::int64_t c = 0; c < width; ++c) {
          const bool nt = s.form == GemmForm::nt;
          out[static_cast<std::size_t>(r * width + c)] = sum_of_products(
              0, a.columns(), x.data() + r * a.columns(), 1,
              y.data() + (nt ? (weight + c) * s.in : weight * s.in + c), nt ? 1 : s.in);
        }
    }
    return out;
  }
};

TEST_P(GroupedGemm, AgreesWithDoubleAndNotOnThreads) {
  const auto& s = GetParam().shape;
  const bool tn = s.form == GemmForm::tn;
  const auto a = Matrix::random("a", s.input, kGroupRowsMax, s.form == GemmForm::nt ? s.in : s.out);
  const auto b = tn ? Matrix::random("b", s.input, kGroupRowsMax, s.in)
                    : Matrix::random("b", s.input, s.groups * s.out, s.in);
  const auto before = tn ? Matrix::random("c", s.output, s.groups * s.out, s.in)
                         : Matrix(s.output, kGroupRowsMax, s.form == GemmForm::nt ? s.out : s.in);
  for (const auto& offsets : kGroupOffsets) {
    SCOPED_TRACE(testing::PrintToString(offsets));
    const auto expected = reference(a, b, before, offsets);
    std::vector<Matrix> results;
    for (const std::size_t threads : {1, 2, 3}) {
      ThreadPool pool(unpinned(threads));
      GemmScratch scratch(threads);
      const GroupedGemmPlan plan(s, scratch, GetParam().native);
      Matrix c = before;
      plan.run(pool, a.data(), b.data(), c.data(), offsets);
      EXPECT_LT(relative_error(c.values(), expected), tolerance(s.output));
      // What no group has is left alone.
      for (std::int64_t r = offsets.back(); !tn && r < kGroupRowsMax; ++r)
        ASSERT_EQ(c.at(r, 0), before.at(r, 0)) << r;
      results.push_back(c);
      EXPECT_TRUE(c.same_bits(results.front())) << threads << " threads";
    }
  }
}

std::vector<GroupedCase> grouped_cases() {
  std::vector<GroupedCase> all;
  const std::int64_t sizes[][2] = {{33, 20}, {600, 24}, {24, 600}, {1024, 17}};
  for (const auto& [out, in] : sizes)
    for (const auto form : {GemmForm::nt, GemmForm::nn, GemmForm::tn}) {
      GroupedGemmShape shape{
          .form = form, .groups = 4, .rows_max = kGroupRowsMax, .out = out, .in = in};
      all.push_back({shape});
      if (form == GemmForm::tn) {
        shape.accumulate = true;
        all.push_back({shape});
        shape.accumulate = false;
      }
      shape.input = DType::bf16;
      for (const bool native : {false, true}) {
        if (native && __builtin_cpu_supports("avx512bf16") == 0) continue;
        all.push_back({shape, native});
        auto other = shape;
        if (form == GemmForm::tn)
          other.accumulate = true;
        else
          other.output = DType::bf16;
        all.push_back({other, native});
      }
    }
  return all;
}

std::string grouped_name(const testing::TestParamInfo<GroupedCase>& info) {
  const auto& s = info.param.shape;
  const char* form = s.form == GemmForm::nt ? "nt" : s.form == GemmForm::nn ? "nn" : "tn";
  return fmt::format("{}_{}x{}_{}_to_{}{}{}", form, s.out, s.in, to_string(s.input),
                     to_string(s.output), s.accumulate ? "_added" : "",
                     info.param.native ? "" : "_in_f32");
}

INSTANTIATE_TEST_SUITE_P(Shapes, GroupedGemm, testing::ValuesIn(grouped_cases()), grouped_name);

}  // namespace
}  // namespace isthmus::kernels

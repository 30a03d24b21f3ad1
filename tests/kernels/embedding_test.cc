#include "kernels/embedding.h"

#include "reference.h"

namespace isthmus::kernels {
namespace {

TEST(Embedding, AgreesWithDouble) {
  for (const std::int64_t hidden : {1, 48, 65, 200})
    for (const DType table_type : kDTypes)
      for (const DType out_type : kDTypes) {
        const std::int64_t vocabulary = 97;
        std::vector<std::int32_t> tokens;
        for (int i = 0; i < 150; ++i) tokens.push_back((i * i) % 97);  // repeats
        const auto count = static_cast<std::int64_t>(tokens.size());
        const Matrix table = Matrix::random("table", table_type, vocabulary, hidden);
        const Matrix dout = Matrix::random("dout", out_type, count, hidden, 1);
        const Matrix before = Matrix::random("before", DType::f32, vocabulary, hidden);
        std::vector<double> expected;
        std::vector<double> gradient = before.values();
        for (std::int64_t r = 0; r < count; ++r)
          for (std::int64_t c = 0; c < hidden; ++c) {
            const std::int64_t token = tokens[static_cast<std::size_t>(r)];
            expected.push_back(table.at(token, c));
            gradient[static_cast<std::size_t>(token * hidden + c)] += dout.at(r, c);
          }
        on_every_target_and_thread_count([&](ThreadPool& pool) {
          Matrix out(out_type, count, hidden, 3);
          embedding_forward(pool, tokens, table.view(), out.view());
          EXPECT_LT(relative_error(out.values(), expected), tolerance(out_type));
          Matrix dtable = before;
          embedding_backward(pool, tokens, dout.view(), dtable.view());
          EXPECT_LT(relative_error(dtable.values(), gradient), tolerance(DType::f32));
          EXPECT_TRUE(out.padding_is_untouched());
          return std::vector<Matrix>{out, dtable};
        });
      }
}

}  // namespace
}  // namespace isthmus::kernels

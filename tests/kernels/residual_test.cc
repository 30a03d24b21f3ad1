#include "kernels/residual.h"

#include "reference.h"

namespace isthmus::kernels {
namespace {

TEST(Residual, AddsAndCopies) {
  for (const DType x_type : kDTypes)
    for (const DType y_type : kDTypes)
      for (const DType out_type : kDTypes) {
        const Matrix x = Matrix::random("x", x_type, 13, 97, 3);
        const Matrix y = Matrix::random("y", y_type, 13, 97, 5);
        std::vector<double> sum = x.values();
        const std::vector<double> right = y.values();
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += right[i];
        on_every_target_and_thread_count([&](ThreadPool& pool) {
          Matrix out(out_type, 13, 97, 1);
          residual_add(pool, x.view(), y.view(), out.view());
          EXPECT_LT(relative_error(out.values(), sum), tolerance(out_type));
          EXPECT_TRUE(out.padding_is_untouched());
          Matrix copy(out_type, 13, 97, 1);
          copy_rows(pool, x.view(), copy.view());
          EXPECT_LT(relative_error(copy.values(), x.values()), tolerance(out_type));
          if (x_type == out_type) {
            EXPECT_EQ(copy.values(), x.values());
          }
          Matrix in_place = x;
          residual_add(pool, in_place.view(), y.view(), in_place.view());
          EXPECT_LT(relative_error(in_place.values(), sum), tolerance(x_type));
          return std::vector<Matrix>{out, copy, in_place};
        });
      }
}

}  // namespace
}  // namespace isthmus::kernels

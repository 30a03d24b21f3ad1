#include "kernels/residual.h"

#include "kernels/elements.h"
#include "kernels/row_tasks.h"

namespace isthmus::kernels {

void residual_add(ThreadPool& pool, const Rows& x, const Rows& y, const Rows& out) {
  ISTHMUS_ASSERT(x.same_shape(y) && x.same_shape(out));
  for_row_tasks(pool, x.rows, x.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
    with_element(x.dtype, [&](auto left) {
      with_element(y.dtype, [&](auto right) {
        with_element(out.dtype, [&](auto result) {
          for (std::int64_t row = first; row < end; ++row) {
            const auto* a = static_cast<const decltype(left)*>(x.at(row, 0));
            const auto* b = static_cast<const decltype(right)*>(y.at(row, 0));
            auto* o = static_cast<decltype(result)*>(out.at(row, 0));
            for (std::int64_t i = 0; i < x.columns; ++i) store(load(a + i) + load(b + i), o + i);
          }
        });
      });
    });
  });
}

void copy_rows(ThreadPool& pool, const Rows& x, const Rows& out) {
  ISTHMUS_ASSERT(x.same_shape(out));
  for_row_tasks(pool, x.rows, x.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
    with_element(x.dtype, [&](auto in) {
      with_element(out.dtype, [&](auto result) {
        for (std::int64_t row = first; row < end; ++row) {
          const auto* from = static_cast<const decltype(in)*>(x.at(row, 0));
          auto* to = static_cast<decltype(result)*>(out.at(row, 0));
          for (std::int64_t i = 0; i < x.columns; ++i) store(load(from + i), to + i);
        }
      });
    });
  });
}

}  // namespace isthmus::kernels

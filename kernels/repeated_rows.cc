#include "kernels/repeated_rows.h"

#include "base/assert.h"
#include "kernels/elements.h"
#include "kernels/row_tasks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/repeated_rows.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

void add_table(const Rows& x, const Rows& table, const Rows& y, std::int64_t first,
               std::int64_t end) {
  with_element(x.dtype, [&](auto in) {
    with_element(table.dtype, [&](auto repeated) {
      with_element(y.dtype, [&](auto out) {
        for (std::int64_t row = first; row < end; ++row) {
          const auto* a = static_cast<const decltype(in)*>(x.at(row, 0));
          const auto* b = static_cast<const decltype(repeated)*>(table.at(row % table.rows, 0));
          auto* to = static_cast<decltype(out)*>(y.at(row, 0));
          for_lanes(static_cast<std::size_t>(x.columns), [=](auto tag, std::size_t i) {
            store_float(hn::Add(load_as_float(tag, a + i), load_as_float(tag, b + i)), tag, to + i);
          });
        }
      });
    });
  });
}

// sum [columns] += the rows first, first + step, … before `end`.
void sum_every(const Rows& dy, std::int64_t first, std::int64_t end, std::int64_t step,
               float* sum) {
  with_element(dy.dtype, [&](auto element) {
    for (std::int64_t row = first; row < end; row += step) {
      const auto* from = static_cast<const decltype(element)*>(dy.at(row, 0));
      for_lanes(static_cast<std::size_t>(dy.columns), [=](auto tag, std::size_t i) {
        hn::StoreU(hn::Add(hn::LoadU(tag, sum + i), load_as_float(tag, from + i)), tag, sum + i);
      });
    }
  });
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(add_table);
HWY_EXPORT(sum_every);

void add_repeated_rows(ThreadPool& pool, const Rows& x, const Rows& table, const Rows& y) {
  ISTHMUS_ASSERT(x.same_shape(y) && table.columns == x.columns && table.rows > 0);
  for_row_tasks(pool, x.rows, x.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
    HWY_DYNAMIC_DISPATCH(add_table)(x, table, y, first, end);
  });
}

std::size_t repeated_rows_scratch_floats(std::int64_t rows, std::int64_t columns,
                                         std::int64_t table_rows) {
  if (table_rows != 1) return 0;
  return sum_scratch_floats(rows, columns, static_cast<std::size_t>(columns));
}

void sum_repeated_rows(ThreadPool& pool, const Rows& dy, const Rows& dtable,
                       std::span<float> scratch) {
  ISTHMUS_ASSERT(dtable.dtype == DType::f32 && dtable.columns == dy.columns && dtable.rows > 0);
  const auto row_of = [&](std::int64_t p) { return static_cast<float*>(dtable.at(p, 0)); };
  if (dtable.rows == 1) {
    const std::span sum(row_of(0), static_cast<std::size_t>(dy.columns));
    for_row_tasks_with_sum(pool, dy.rows, dy.columns, sum, scratch,
                           [&](std::int64_t first, std::int64_t end, float* partial) {
                             HWY_DYNAMIC_DISPATCH(sum_every)(dy, first, end, 1, partial);
                           });
    return;
  }
  const std::int64_t repeats = (dy.rows + dtable.rows - 1) / dtable.rows;
  for_row_tasks(pool, dtable.rows, repeats * dy.columns,
                [&](std::int64_t first, std::int64_t end, auto, auto) {
                  for (std::int64_t p = first; p < end; ++p)
                    HWY_DYNAMIC_DISPATCH(sum_every)(dy, p, dy.rows, dtable.rows, row_of(p));
                });
}

}  // namespace isthmus::kernels
#endif

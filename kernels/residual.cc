#include "kernels/residual.h"

#include "base/assert.h"
#include "kernels/elements.h"
#include "kernels/row_tasks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/residual.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

void add_rows(const Rows& x, const Rows& y, const Rows& out, std::int64_t first, std::int64_t end) {
  with_element(x.dtype, [&](auto left) {
    with_element(y.dtype, [&](auto right) {
      with_element(out.dtype, [&](auto result) {
        for (std::int64_t row = first; row < end; ++row) {
          const auto* a = static_cast<const decltype(left)*>(x.at(row, 0));
          const auto* b = static_cast<const decltype(right)*>(y.at(row, 0));
          auto* o = static_cast<decltype(result)*>(out.at(row, 0));
          for_lanes(static_cast<std::size_t>(x.columns), [=](auto tag, std::size_t i) {
            store_float(hn::Add(load_as_float(tag, a + i), load_as_float(tag, b + i)), tag, o + i);
          });
        }
      });
    });
  });
}

void convert_rows(const Rows& x, const Rows& out, std::int64_t first, std::int64_t end) {
  with_element(x.dtype, [&](auto in) {
    with_element(out.dtype, [&](auto result) {
      for (std::int64_t row = first; row < end; ++row) {
        const auto* from = static_cast<const decltype(in)*>(x.at(row, 0));
        auto* to = static_cast<decltype(result)*>(out.at(row, 0));
        for_lanes(static_cast<std::size_t>(x.columns), [=](auto tag, std::size_t i) {
          store_float(load_as_float(tag, from + i), tag, to + i);
        });
      }
    });
  });
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(add_rows);
HWY_EXPORT(convert_rows);

void residual_add(ThreadPool& pool, const Rows& x, const Rows& y, const Rows& out) {
  ISTHMUS_ASSERT(x.same_shape(y) && x.same_shape(out));
  for_row_tasks(pool, x.rows, x.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
    HWY_DYNAMIC_DISPATCH(add_rows)(x, y, out, first, end);
  });
}

void copy_rows(ThreadPool& pool, const Rows& x, const Rows& out) {
  ISTHMUS_ASSERT(x.same_shape(out));
  for_row_tasks(pool, x.rows, x.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
    HWY_DYNAMIC_DISPATCH(convert_rows)(x, out, first, end);
  });
}

}  // namespace isthmus::kernels
#endif

#include "kernels/gathered_rows.h"

#include <cstddef>

#include "base/assert.h"
#include "kernels/elements.h"
#include "kernels/row_tasks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gathered_rows.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

void gather(const Rows& x, const std::int32_t* numbers, const Rows& out, std::int64_t first,
            std::int64_t end) {
  with_element(x.dtype, [&](auto in) {
    with_element(out.dtype, [&](auto result) {
      for (auto row = first; row < end; ++row) {
        const auto* from = static_cast<const decltype(in)*>(x.at(numbers[row], 0));
        auto* to = static_cast<decltype(result)*>(out.at(row, 0));
        for_lanes(static_cast<std::size_t>(out.columns), [=](auto tag, std::size_t i) {
          store_float(load_as_float(tag, from + i), tag, to + i);
        });
      }
    });
  });
}

void sum_gathered(const Rows& y, const std::int32_t* numbers, std::int64_t per_token,
                  bool accumulate, const Rows& out, std::int64_t first, std::int64_t end) {
  with_element(y.dtype, [&](auto in) {
    with_element(out.dtype, [&](auto result) {
      using In = decltype(in);
      for (auto token = first; token < end; ++token) {
        const auto* of_token = numbers + token * per_token;
        auto* to = static_cast<decltype(result)*>(out.at(token, 0));
        for_lanes(static_cast<std::size_t>(out.columns), [=, &y](auto tag, std::size_t i) {
          auto sum = accumulate ? load_as_float(tag, to + i) : hn::Zero(tag);
          for (std::int64_t j = 0; j < per_token; ++j)
            if (of_token[j] != kNoRow)
              sum = hn::Add(sum,
                            load_as_float(tag, static_cast<const In*>(y.at(of_token[j], 0)) + i));
          store_float(sum, tag, to + i);
        });
      }
    });
  });
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(gather);
HWY_EXPORT(sum_gathered);

void gather_rows(ThreadPool& pool, const Rows& x, std::span<const std::int32_t> numbers,
                 const Rows& out) {
  const auto rows = std::ssize(numbers);
  ISTHMUS_ASSERT(x.columns == out.columns && rows <= out.rows);
  for_row_tasks(pool, rows, out.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
    HWY_DYNAMIC_DISPATCH(gather)(x, numbers.data(), out, first, end);
  });
}

void sum_gathered_rows(ThreadPool& pool, const Rows& y, std::span<const std::int32_t> numbers,
                       bool accumulate, const Rows& out) {
  ISTHMUS_ASSERT(y.columns == out.columns && out.rows > 0 && std::ssize(numbers) % out.rows == 0);
  const auto per_token = std::ssize(numbers) / out.rows;
  for_row_tasks(pool, out.rows, out.columns * (per_token + 1),
                [&](std::int64_t first, std::int64_t end, auto, auto) {
                  HWY_DYNAMIC_DISPATCH(sum_gathered)
                  (y, numbers.data(), per_token, accumulate, out, first, end);
                });
}

}  // namespace isthmus::kernels
#endif

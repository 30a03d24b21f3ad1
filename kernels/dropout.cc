#include "kernels/dropout.h"

#include "base/assert.h"
#include "kernels/elements.h"
#include "kernels/residual.h"
#include "kernels/row_tasks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dropout.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/dropout-inl.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

void drop_row(const Rows& x, const Rows& y, const DropoutWords& words, std::int64_t row,
              std::int64_t position) {
  with_element(x.dtype, [&](auto in) {
    with_element(y.dtype, [&](auto out) {
      const auto* from = static_cast<const decltype(in)*>(x.at(row, 0));
      auto* to = static_cast<decltype(out)*>(y.at(row, 0));
      const auto columns = static_cast<std::size_t>(x.columns);
      HWY_ALIGN float room[kMaskBlock];
      float* factors = room;
      for (std::size_t first = 0; first < columns; first += kMaskBlock) {
        make_dropout_factors(words, static_cast<std::uint32_t>(first / kMaskBlock),
                             static_cast<std::uint32_t>(position), 0, factors);
        const std::size_t left = columns - first;
        for_lanes(left < kMaskBlock ? left : kMaskBlock, [=](auto tag, std::size_t i) {
          const auto value = load_as_float(tag, from + first + i);
          store_float(hn::Mul(value, hn::LoadU(tag, factors + i)), tag, to + first + i);
        });
      }
    });
  });
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(drop_row);

void dropout(ThreadPool& pool, const Rows& x, std::int64_t sequence, const DropoutMask& mask,
             const Rows& y) {
  ISTHMUS_ASSERT(x.same_shape(y) && sequence > 0 && x.rows % sequence == 0);
  if (mask.rate == 0) {
    copy_rows(pool, x, y);
    return;
  }
  ISTHMUS_ASSERT(static_cast<std::int64_t>(mask.keys.size()) == x.rows / sequence * 2);
  for_row_tasks(pool, x.rows, x.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
    for (std::int64_t row = first; row < end; ++row) HWY_DYNAMIC_DISPATCH(drop_row)
    (x, y, DropoutWords(mask, row / sequence), row, row % sequence);
  });
}

}  // namespace isthmus::kernels
#endif

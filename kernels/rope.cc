#include "kernels/rope.h"

#include <cmath>

#include "base/assert.h"
#include "kernels/elements.h"
#include "kernels/row_tasks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rope.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

template <class T>
void rotate_head(T* x, const float* cosines, const float* sines, std::size_t half, float sign) {
  for_lanes(half, [=](auto tag, std::size_t i) {
    const auto low = load_as_float(tag, x + i);
    const auto high = load_as_float(tag, x + half + i);
    const auto cosine = hn::LoadU(tag, cosines + i);
    const auto sine = hn::Mul(hn::LoadU(tag, sines + i), hn::Set(tag, sign));
    store_float(hn::Sub(hn::Mul(low, cosine), hn::Mul(high, sine)), tag, x + i);
    store_float(hn::Add(hn::Mul(high, cosine), hn::Mul(low, sine)), tag, x + half + i);
  });
}

// One row: all heads at one position.
void rotate_row(const Rows& x, std::int64_t row, std::int64_t head_dim, const float* cosines,
                float sign) {
  const std::int64_t half = head_dim / 2;
  with_element(x.dtype, [&](auto element) {
    for (std::int64_t head = 0; head < x.columns; head += head_dim)
      rotate_head(static_cast<decltype(element)*>(x.at(row, head)), cosines, cosines + half,
                  static_cast<std::size_t>(half), sign);
  });
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(rotate_row);

void rope_table(std::span<const double> frequencies, double amplitude, std::int64_t positions,
                std::span<float> table) {
  const auto half = frequencies.size();
  ISTHMUS_ASSERT(table.size() == static_cast<std::size_t>(positions) * 2 * half);
  for (std::size_t position = 0; position < static_cast<std::size_t>(positions); ++position)
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * frequencies[i];
      table[2 * half * position + i] = static_cast<float>(std::cos(angle) * amplitude);
      table[2 * half * position + half + i] = static_cast<float>(std::sin(angle) * amplitude);
    }
}

void rope(ThreadPool& pool, const Rows& x, std::int64_t head_dim,
          std::span<const std::int32_t> positions, std::int64_t sequence,
          std::span<const float> table, RopeDirection direction) {
  ISTHMUS_ASSERT(
      head_dim % 2 == 0 && x.columns % head_dim == 0 &&
      (positions.empty() ? sequence > 0 : static_cast<std::int64_t>(positions.size()) == x.rows));
  const std::int64_t table_positions = static_cast<std::int64_t>(table.size()) / head_dim;
  const float sign = direction == RopeDirection::forward ? 1.0F : -1.0F;
  for_row_tasks(pool, x.rows, x.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
    for (std::int64_t row = first; row < end; ++row) {
      const std::int64_t position =
          positions.empty() ? row % sequence : positions[static_cast<std::size_t>(row)];
      ISTHMUS_ASSERT(position >= 0 && position < table_positions);
      HWY_DYNAMIC_DISPATCH(rotate_row)
      (x, row, head_dim, table.data() + position * head_dim, sign);
    }
  });
}

}  // namespace isthmus::kernels
#endif

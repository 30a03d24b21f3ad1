#include "kernels/rope.h"

#include <cmath>

#include "kernels/elements.h"
#include "kernels/row_tasks.h"

namespace isthmus::kernels {

void rope_table(double theta, std::int64_t head_dim, std::int64_t positions,
                std::span<float> table) {
  ISTHMUS_ASSERT(head_dim % 2 == 0 &&
                 static_cast<std::int64_t>(table.size()) == positions * head_dim);
  const std::int64_t half = head_dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const double frequency =
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    for (std::int64_t position = 0; position < positions; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      table[position * head_dim + i] = static_cast<float>(std::cos(angle));
      table[position * head_dim + half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

namespace {

template <class T>
void rotate_head(T* x, const float* cosines, const float* sines, std::int64_t half, float sign) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float low = load(x + i);
    const float high = load(x + half + i);
    const float sine = sign * sines[i];
    store(low * cosines[i] - high * sine, x + i);
    store(high * cosines[i] + low * sine, x + half + i);
  }
}

}  // namespace

void rope(ThreadPool& pool, const Rows& x, std::int64_t head_dim,
          std::span<const std::int32_t> positions, std::int64_t sequence,
          std::span<const float> table, RopeDirection direction) {
  ISTHMUS_ASSERT(
      head_dim % 2 == 0 && x.columns % head_dim == 0 &&
      (positions.empty() ? sequence > 0 : static_cast<std::int64_t>(positions.size()) == x.rows));
  const std::int64_t table_positions = static_cast<std::int64_t>(table.size()) / head_dim;
  const std::int64_t half = head_dim / 2;
  const float sign = direction == RopeDirection::forward ? 1.0F : -1.0F;
  for_row_tasks(pool, x.rows, x.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
    with_element(x.dtype, [&](auto element) {
      for (std::int64_t row = first; row < end; ++row) {
        const std::int64_t position = positions.empty() ? row % sequence : positions[row];
        ISTHMUS_ASSERT(position >= 0 && position < table_positions);
        const float* cosines = table.data() + position * head_dim;
        for (std::int64_t head = 0; head < x.columns; head += head_dim)
          rotate_head(static_cast<decltype(element)*>(x.at(row, head)), cosines, cosines + half,
                      half, sign);
      }
    });
  });
}

}  // namespace isthmus::kernels

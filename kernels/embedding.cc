#include "kernels/embedding.h"

#include <algorithm>
#include <cstddef>

#include "kernels/elements.h"
#include "kernels/row_tasks.h"

namespace isthmus::kernels {

void embedding_forward(ThreadPool& pool, std::span<const std::int32_t> tokens, const Rows& table,
                       const Rows& out) {
  ISTHMUS_ASSERT(static_cast<std::int64_t>(tokens.size()) == out.rows &&
                 table.columns == out.columns);
  for_row_tasks(pool, out.rows, out.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
    with_element(table.dtype, [&](auto in) {
      with_element(out.dtype, [&](auto result) {
        for (std::int64_t row = first; row < end; ++row) {
          ISTHMUS_ASSERT(tokens[row] >= 0 && tokens[row] < table.rows);
          const auto* from = static_cast<const decltype(in)*>(table.at(tokens[row], 0));
          auto* to = static_cast<decltype(result)*>(out.at(row, 0));
          for (std::int64_t i = 0; i < out.columns; ++i) store(load(from + i), to + i);
        }
      });
    });
  });
}

void embedding_backward(ThreadPool& pool, std::span<const std::int32_t> tokens, const Rows& dout,
                        const Rows& dtable) {
  ISTHMUS_ASSERT(static_cast<std::int64_t>(tokens.size()) == dout.rows &&
                 dtable.columns == dout.columns && dtable.dtype == DType::f32);
  // A token can occur anywhere, so a task owns columns, not tokens.
  constexpr std::int64_t kColumns = 64;
  const std::int64_t tasks = (dout.columns + kColumns - 1) / kColumns;
  pool.parallel_for(static_cast<std::size_t>(tasks), [&](std::size_t task, std::size_t) {
    const std::int64_t first = static_cast<std::int64_t>(task) * kColumns;
    const std::int64_t count = std::min(kColumns, dout.columns - first);
    with_element(dout.dtype, [&](auto in) {
      for (std::int64_t row = 0; row < dout.rows; ++row) {
        ISTHMUS_ASSERT(tokens[row] >= 0 && tokens[row] < dtable.rows);
        const auto* from = static_cast<const decltype(in)*>(dout.at(row, first));
        auto* to = static_cast<float*>(dtable.at(tokens[row], first));
        for (std::int64_t i = 0; i < count; ++i) to[i] += load(from + i);
      }
    });
  });
}

}  // namespace isthmus::kernels

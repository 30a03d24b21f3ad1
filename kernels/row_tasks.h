// How row-wise kernels are cut into tasks: by shape alone. Private to kernels/.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"

namespace isthmus::kernels {

// Rows per task: about 32,768 elements, enough to outweigh handing a task out.
constexpr std::int64_t rows_per_task(std::int64_t columns) {
  return std::max<std::int64_t>(1, 32768 / std::max<std::int64_t>(1, columns));
}

constexpr std::int64_t row_tasks(std::int64_t rows, std::int64_t columns) {
  return (rows + rows_per_task(columns) - 1) / rows_per_task(columns);
}

// Calls body(first_row, end_row, task, worker).
template <class Body>
void for_row_tasks(ThreadPool& pool, std::int64_t rows, std::int64_t columns, const Body& body) {
  const std::int64_t step = rows_per_task(columns);
  pool.parallel_for(static_cast<std::size_t>(row_tasks(rows, columns)),
                    [&](std::size_t task, std::size_t worker) {
                      const std::int64_t first = static_cast<std::int64_t>(task) * step;
                      body(first, std::min(rows, first + step), task, worker);
                    });
}

}  // namespace isthmus::kernels

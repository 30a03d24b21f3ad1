// How row-wise kernels are cut into tasks: by shape alone. Private to kernels/.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/assert.h"
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

// The same for what also sums over all rows, as the gradients of weights: each task has `values`
// floats of its own in the scratch, zeros at first. Calls body(first_row, end_row, partial);
// partial is nullptr where `values` is 0. `scratch`: sum_scratch_floats().
constexpr std::size_t sum_scratch_floats(std::int64_t rows, std::int64_t columns,
                                         std::size_t values) {
  return static_cast<std::size_t>(row_tasks(rows, columns)) * values;
}

template <class Body>
void for_row_tasks_with_partials(ThreadPool& pool, std::int64_t rows, std::int64_t columns,
                                 std::size_t values, std::span<float> scratch, const Body& body) {
  ISTHMUS_ASSERT(scratch.size() >= sum_scratch_floats(rows, columns, values));
  for_row_tasks(pool, rows, columns,
                [&](std::int64_t first, std::int64_t end, std::size_t task, std::size_t) {
                  float* partial = nullptr;
                  if (values > 0) {
                    partial = scratch.data() + task * values;
                    std::fill_n(partial, values, 0.0F);
                  }
                  body(first, end, partial);
                });
}

// Then these are added up in the order of the rows: sum += what each task has at `offset`.
inline void add_partials(std::int64_t tasks, std::size_t values, std::size_t offset,
                         std::span<const float> scratch, std::span<float> sum) {
  for (std::size_t task = 0; task < static_cast<std::size_t>(tasks); ++task) {
    const float* partial = scratch.data() + task * values + offset;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += partial[i];
  }
}

// Both, for one sum.
template <class Body>
void for_row_tasks_with_sum(ThreadPool& pool, std::int64_t rows, std::int64_t columns,
                            std::span<float> sum, std::span<float> scratch, const Body& body) {
  for_row_tasks_with_partials(pool, rows, columns, sum.size(), scratch, body);
  add_partials(row_tasks(rows, columns), sum.size(), 0, scratch, sum);
}

}  // namespace isthmus::kernels
